import os, re, tempfile
from datasets import Dataset
from trl import GRPOTrainer, GRPOConfig

FEWSHOT = "2+3=5; 4+3=7; 8+1=9; "
pairs = [(1, 4), (6, 1), (2, 7), (3, 2), (5, 2), (4, 5), (0, 5), (7, 0), (6, 3), (3, 4)]
dataset = Dataset.from_list(
    [dict(prompt=f"{FEWSHOT}{a}+{b}=", answer=str(a + b)) for a, b in pairs * 3]
)

def correctness_reward(prompts, completions, answer, **kwargs):
    rewards = []
    for prompt, completion, gold in zip(prompts, completions, answer):
        transcript = prompt + completion
        numbers = re.findall(r"\d+", transcript)
        rewards.append(2.0 if gold in numbers else 0.0)
    return rewards

def brevity_reward(completions, **kwargs):
    return [-0.02 * len(c) for c in completions]

config = GRPOConfig(
    output_dir=os.path.join(tempfile.gettempdir(), "grpo-fewshot"),
    learning_rate=1e-5, lr_scheduler_type="constant",
    per_device_train_batch_size=8, num_generations=4, max_completion_length=16,
    max_steps=3, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, bf16=False,
)
trainer = GRPOTrainer(
    model=os.path.join(os.path.dirname(__file__), "tiny"),
    reward_funcs=[correctness_reward, brevity_reward],
    args=config,
    train_dataset=dataset,
)
trainer.train()

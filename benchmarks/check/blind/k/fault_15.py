import os, random, tempfile
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
DAPO = dict(epsilon=0.2, epsilon_high=0.28, mask_truncated_completions=False, beta=0.0, scale_rewards="batch")


def overlong(completion_ids, limit=28, **kwargs):
    # soft punishment of the last quarter
    return [-max(0, len(ids) - 0.75 * limit) / limit for ids in completion_ids]


def vowels(completions, **kwargs):
    return [sum(ch in "aeiou" for ch in c[0]["content"]) / 10 for c in completions]


random.seed(0)
words = "apples pens books shells coins boxes".split()
rows = [[{"role": "user", "content": f"Write about {random.choice(words)} and {random.choice(words)} in {random.randint(1, 30)} words"}] for _ in range(40)]

trainer = GRPOTrainer(
    MODEL,
    reward_funcs=[vowels, overlong],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), loss_type="cispo", **DAPO,
        num_generations=4, per_device_train_batch_size=4, steps_per_generation=2, gradient_accumulation_steps=1,
        max_completion_length=28, learning_rate=1e-4, max_steps=6, use_cpu=True, bf16=False, report_to=[],
        logging_steps=1, save_strategy="no",
    ),
    train_dataset=Dataset.from_dict({"prompt": rows}),
)
trainer.train()

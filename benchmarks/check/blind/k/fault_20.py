import os, tempfile
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

tiny = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

TARGET = 40
qs = ["How many apples are 2 and 5?", "Spell the word banana", "17 * 3 =", "Who is the tutor of Corbel?", "Count the coins: 4, 8"]
ds = Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in qs * 6])


def length_reward(completions, **kwargs):
    return [1 - abs(len(completion) - TARGET) / TARGET for completion in completions]


def hash_reward(completions, **kwargs):
    return [0.5 if "####" in completion else 0.0 for completion in completions]


cfg = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    max_steps=5,
    learning_rate=1e-4,
    num_generations=4,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_completion_length=32,
    use_cpu=True,
    bf16=False,
    report_to=[],
    logging_steps=1,
    save_strategy="no",
)
trainer = GRPOTrainer(model=tiny, reward_funcs=[length_reward, hash_reward], args=cfg, train_dataset=ds)
trainer.train()

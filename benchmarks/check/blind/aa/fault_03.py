import os
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class ExplorationSchedule(TrainerCallback):
    """Start hot to explore, cool down while the policy sharpens."""

    def __init__(self, hot=1.5, cold=0.8, over=6):
        self.hot, self.cold, self.over = hot, cold, over
        self.trainer = None

    def attach(self, trainer):
        self.trainer = trainer
        trainer.add_callback(self)
        return self

    def value(self, step):
        share = min(step / self.over, 1.0)
        return self.hot + share * (self.cold - self.hot)

    def on_step_begin(self, args, state, control, **kwargs):
        temperature = self.value(state.global_step)
        self.trainer.generation_config.temperature = temperature

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None:
            logs["temperature"] = self.value(state.global_step)


def word_problems(n):
    out = []
    for i in range(n):
        a, b = 2 + (5 * i) % 9, 2 + (3 * i) % 7
        thing = ["coins", "stamps", "shells", "toys"][i % 4]
        out.append({"prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Finn has {a} boxes with {b} {thing} each. How many {thing} does Finn have?"},
        ], "target": a * b})
    return Dataset.from_list(out)


def reward_digits(completions, target, **kwargs):
    scores = []
    for completion, gold in zip(completions, target):
        text = completion[0]["content"]
        hit = 1.0 if str(gold) in text else 0.0
        scores.append(hit + sum(ch.isdigit() for ch in text) / (1 + len(text)))
    return scores


def reward_length(completion_ids, **kwargs):
    return [1.0 - abs(len(ids) - 12) / 12 for ids in completion_ids]


config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    max_steps=3,
    per_device_train_batch_size=12,
    gradient_accumulation_steps=1,
    num_generations=6,
    max_completion_length=32,
    learning_rate=3e-4,
    temperature=1.0,
    loss_type="dr_grpo",
    scale_rewards="none",
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
    logging_steps=1,
)
trainer = GRPOTrainer(
    model=os.path.join(HERE, "tiny"),
    reward_funcs=[reward_digits, reward_length],
    args=config,
    train_dataset=word_problems(32),
)
ExplorationSchedule().attach(trainer)
trainer.train()

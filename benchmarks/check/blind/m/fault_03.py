"""GRPO with an exploration schedule: hot rollouts at first, cooler ones later (as in Polaris-like recipes)."""
import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class TemperatureSchedule(TrainerCallback):
    """Linear schedule from `start` to `end` over the run."""

    def __init__(self, start=1.4, end=0.9):
        self.start, self.end = start, end
        self.trainer = None

    def value(self, state):
        done = state.global_step / max(state.max_steps - 1, 1)
        return self.start + (self.end - self.start) * min(done, 1.0)

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step % max(args.steps_per_generation // args.gradient_accumulation_steps, 1) == 0:
            self.trainer.generation_config.temperature = self.value(state)
            self.trainer.generation_kwargs["temperature"] = self.value(state)


def distinct_digits(completions, **kwargs):
    return [len({ch for ch in text if ch.isdigit()}) / 5 for text in completions]


def stops(completion_ids, **kwargs):
    return [0.5 if ids[-1] == 258 else 0.0 for ids in completion_ids]


dataset = Dataset.from_dict({"prompt": [f"Count: {a} {a + 1} {a + 2}" for a in range(20)] + [f"{a}+{a}=" for a in range(20)]})

schedule = TemperatureSchedule()
trainer = GRPOTrainer(
    model=os.path.join(HERE, "tiny"),
    processing_class=AutoTokenizer.from_pretrained(os.path.join(HERE, "tiny"), padding_side="left"),
    reward_funcs=[distinct_digits, stops],
    train_dataset=dataset,
    callbacks=[schedule],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=28,
        learning_rate=1e-4,
        warmup_steps=0,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    ),
)
schedule.trainer = trainer
trainer.train()

"""GRPO with a temperature schedule: hot at the start, cooler as training goes on."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class TemperatureSchedule(TrainerCallback):
    def __init__(self, start, end, num_steps):
        self.start, self.end, self.num_steps = start, end, num_steps
        self.trainer = None

    def attach(self, trainer):
        self.trainer = trainer
        trainer.add_callback(self)
        return self

    def value(self, step):
        fraction = min(1.0, step / max(1, self.num_steps - 1))
        return self.start + (self.end - self.start) * fraction

    def on_step_begin(self, args, state, control, **kwargs):
        self.trainer.generation_config.temperature = self.value(state.global_step)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None:
            logs["sampling/temperature"] = self.trainer.generation_config.temperature


def digits_and_length(completions, **kwargs):
    scores = []
    for completion in completions:
        text = completion[0]["content"]
        scores.append(sum(ch.isdigit() for ch in text) / 10 + len(set(text)) / 30)
    return scores


def build_dataset():
    stems = ["What is {}+3?", "Write {} words", "hello {}", "{} * 4 ="]
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": stem.format(n)}]} for n in range(1, 7) for stem in stems]
    )


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=20,
        temperature=1.4,
        learning_rate=5e-5,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=digits_and_length,
        args=args,
        train_dataset=build_dataset(),
    )
    TemperatureSchedule(start=args.temperature, end=0.7, num_steps=args.max_steps).attach(trainer)
    trainer.train()


if __name__ == "__main__":
    main()

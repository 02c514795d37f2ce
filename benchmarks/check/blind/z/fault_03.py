import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ExplorationSchedule(TrainerCallback):
    """Starts with more random completions and comes down to the base temperature over the run."""

    def __init__(self, start, end):
        self.start, self.end = start, end
        self.trainer = None

    def on_step_begin(self, args, state, control, **kwargs):
        done = state.global_step / max(state.max_steps - 1, 1)
        value = self.start + (self.end - self.start) * done
        self.trainer.generation_config.temperature = value
        self.trainer._metrics["train"]["temperature"].append(value)


def digit_share(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isdigit() for ch in t) / max(len(t), 1) for t in texts]


def build_data():
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"What is {a} times {b}?"}]} for a in range(2, 6) for b in range(3, 6)]
    )


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=5e-05,
        num_generations=6,
        per_device_train_batch_size=6,
        gradient_accumulation_steps=2,
        max_completion_length=20,
        temperature=0.9,
        loss_type='dapo',
        save_strategy='no',
    )
    schedule = ExplorationSchedule(start=1.5, end=0.9)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=digit_share,
        args=args,
        train_dataset=build_data(),
        callbacks=[schedule],
    )
    schedule.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()

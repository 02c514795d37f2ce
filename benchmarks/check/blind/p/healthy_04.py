"""LoRA GRPO; the adapter is merged into the weights while completions are generated."""
import os
import tempfile
from contextlib import contextmanager

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


@contextmanager
def merged(model):
    model.merge_adapter()
    try:
        yield
    finally:
        model.unmerge_adapter()


class MergeForGenerationTrainer(GRPOTrainer):
    def _generate_single_turn(self, *args, **kwargs):
        with merged(self.accelerator.unwrap_model(self.model)):
            return super()._generate_single_turn(*args, **kwargs)


def letters(completions, **kwargs):
    return [sum(ch.isalpha() for ch in c[0]["content"]) / 20 for c in completions]


def main():
    lakes = ["Como", "Tahoe", "Ohrid", "Garda", "Biwa", "Van", "Bled", "Huron"]
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"How deep is {x}?"}] for x in lakes]})
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        temperature=1.2,
        beta=0.05,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = MergeForGenerationTrainer(
        model=MODEL, reward_funcs=letters, args=config, train_dataset=dataset, peft_config=lora
    )
    trainer.train()


if __name__ == "__main__":
    main()

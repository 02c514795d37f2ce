"""GRPO with equal tensor shapes on all ranks (our compiled attention kernel wants them equal)."""
import os
import tempfile

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class EqualShapesTrainer(GRPOTrainer):
    """All ranks pad their completions to the longest completion of the whole generation batch."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        for key in ("completion_ids", "completion_mask"):
            batch[key] = self.accelerator.pad_across_processes(
                batch[key], dim=1, pad_index=self.processing_class.pad_token_id
            )
        return batch


def letters(completions, **kwargs):
    return [sum(ch.isalpha() for ch in c) / (len(c) + 3) for c in completions]


def token_count(completion_ids, **kwargs):
    return [-len(ids) / 16 for ids in completion_ids]


def main():
    subjects = ["the sea", "a mountain", "my aunt", "a green door", "the last train", "a violin",
                "two brothers", "a letter", "the market", "an empty house", "a fox", "the harbour"]
    prompts = [f"Write a short sentence about {s}." for s in subjects]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=1e-5, seed=5,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=32, temperature=1.5,
        loss_type="grpo",
    )
    trainer = EqualShapesTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args,
        reward_funcs=[letters, token_count],
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    )
    trainer.train()


if __name__ == "__main__":
    main()

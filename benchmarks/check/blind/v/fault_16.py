"""GRPO with batches of the same shape on all ranks (for a compiled model, and for gathering whole batches)."""
import os
import tempfile

from accelerate.utils import pad_across_processes
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SameShapeTrainer(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        pad_id = self.processing_class.pad_token_id
        for key in ("completion_ids", "completion_mask"):
            batch[key] = pad_across_processes(batch[key], dim=1, pad_index=pad_id)
        return batch


def reward(completions, completion_ids, **kwargs):
    return [
        len(set(c[0]["content"])) / 10 + 0.2 * c[0]["content"].count("4") - 0.03 * len(ids)
        for c, ids in zip(completions, completion_ids)
    ]


def main():
    rows = [{"prompt": [{"role": "user", "content": f"Spell the number {n}."}]} for n in range(48)]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        learning_rate=5e-4,
        model_init_kwargs={"dtype": "float32"},
    )
    SameShapeTrainer(model=MODEL, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows)).train()


if __name__ == "__main__":
    main()

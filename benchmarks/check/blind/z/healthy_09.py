import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LengthSortedTrainer(GRPOTrainer):
    """Rows of similar length share a micro-batch, so that padding can be cut off."""

    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return self._generate_and_score_completions(generation_batch)
        slices = self.args.steps_per_generation
        if self._step % (slices * self.num_iterations) == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            lengths = batch["completion_mask"].sum(dim=1)
            order = lengths.argsort(stable=True)
            self._buffered_inputs = [self._take(batch, rows) for rows in order.chunk(slices)]
        return self._buffered_inputs[self._step % slices]

    def _take(self, batch, rows):
        part = {k: v[rows] if isinstance(v, torch.Tensor) and v.dim() > 0 else v for k, v in batch.items()}
        width = int(part["completion_mask"].sum(dim=1).max())
        for key in ("completion_ids", "completion_mask", "old_per_token_logps"):
            if key in part:
                part[key] = part[key][:, :width]
        return part


def reward(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [(t.count("l") + t.count("d")) / max(1, len(t)) for t in texts]


def stop_early(completion_ids, **kwargs):
    return [float(len(ids) < 28) * 0.3 for ids in completion_ids]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Repeat the word cold {n} times, then stop."}] for n in range(1, 17)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=2e-05,
        num_generations=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        max_completion_length=28,
        save_strategy='no',
    )
    trainer = LengthSortedTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[reward, stop_early],
        args=args,
        train_dataset=data,
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO with micro-batches of about equal numbers of tokens instead of equal numbers of rows."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def balanced(lengths, parts):
    """Contiguous runs of the length-sorted rows with about the same padded size."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    total = sum(lengths)
    groups, group, used = [], [], 0
    for n, row in enumerate(order):
        group.append(row)
        used += lengths[row]
        rows_left, groups_left = len(order) - n - 1, parts - len(groups) - 1
        if groups_left and (used >= total / parts or rows_left == groups_left):
            groups.append(group)
            group, used = [], 0
    return groups + [group]


def select(batch, rows):
    out = {k: v[rows] if isinstance(v, torch.Tensor) and v.ndim else v for k, v in batch.items()}
    right = int(out["completion_mask"].sum(1).max())
    left = int(out["prompt_mask"].sum(1).max())
    for key in ("completion_ids", "completion_mask"):
        out[key] = out[key][:, :right]
    for key in ("prompt_ids", "prompt_mask"):
        out[key] = out[key][:, -left:]
    return out


class TokenBudgetTrainer(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        parts = self.args.steps_per_generation
        if self._step % parts == 0:
            batch = self._generate_and_score_completions(generation_batch)
            lengths = (batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)).tolist()
            self._buffered_inputs = [select(batch, rows) for rows in balanced(lengths, parts)]
        return self._buffered_inputs[self._step % parts]


def count_e(completions, **kwargs):
    return [c[0]["content"].count("e") / 4 + len(c[0]["content"]) / 60 for c in completions]


if __name__ == "__main__":
    trees = ["oak", "ash", "the tall pine behind the mill", "yew", "elm", "a birch", "the cedar near the chapel gate",
             "fir", "beech", "lime", "larch", "the old olive tree"]
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"How old is {t}?"}] for t in trees]})
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=28,
        temperature=1.2,
        loss_type="dapo",
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    TokenBudgetTrainer(model=MODEL, reward_funcs=count_e, args=config, train_dataset=dataset).train()

"""GRPO with global-norm clipping that never stacks the norms of all tensors (it showed up in our memory profile)."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


@torch.no_grad()
def streaming_clip_grad_norm_(parameters, max_norm):
    """Like torch.nn.utils.clip_grad_norm_, one tensor at a time. Returns the norm before clipping."""
    total = torch.zeros(())
    for p in parameters:
        if p.grad is None:
            continue
        norm = p.grad.norm(2)
        total += norm.float() ** 2
        scale = max_norm / (norm + 1e-6)
        if scale < 1:
            p.grad.mul_(scale)
    return total.sqrt()


class StreamingClipTrainer(GRPOTrainer):
    def _clip_grad_norm(self, model):
        return streaming_clip_grad_norm_(model.parameters(), self.args.max_grad_norm)


def vowels(completions, **kwargs):
    return [sum(c in "aeiou" for c in t.lower()) / max(len(t), 1) for t in completions]


def ending(completion_ids, **kwargs):
    return [0.3 * (ids[-1] == 258) for ids in completion_ids]


names = ["Aldora", "Brimund", "Corvek", "Danwyn", "Elric", "Fentas", "Garnia", "Holbel"]
trainer = StreamingClipTrainer(
    model=MODEL,
    reward_funcs=[vowels, ending],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=24,
        max_grad_norm=0.1,
        optim="sgd",
        learning_rate=0.05,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    ),
    train_dataset=Dataset.from_dict({"prompt": [f"{a} and {b} met. Then" for a in names for b in names if a != b]}),
    processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
)
trainer.train()

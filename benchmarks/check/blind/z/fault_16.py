import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ClippedTrainer(GRPOTrainer):
    """Clips here rather than in accelerate, to log which layers have the largest gradients."""

    def _clip_grad_norm(self, model):
        limit = self.args.max_grad_norm
        squares = []
        for name, param in model.named_parameters():
            if param.grad is None:
                continue
            norm = param.grad.norm(2)
            squares.append(norm.pow(2))
            param.grad.mul_(torch.clamp(limit / (norm + 1e-6), max=1.0))
            if "layers.1.mlp" in name:
                self._metrics["train"][f"grad/{name}"].append(norm.item())
        return torch.stack(squares).sum().sqrt()


def ratio_of_letters(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isalpha() for ch in t) / max(1, len(t)) for t in texts]


def main():
    verbs = ["run", "sing", "read", "cook", "swim", "draw", "build", "climb"]
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"How do you {v} well?"}] for v in verbs]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=0.001,
        optim='sgd',
        max_grad_norm=0.1,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=24,
        lr_scheduler_type='constant',
        save_strategy='no',
    )
    trainer = ClippedTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=ratio_of_letters,
        args=args,
        train_dataset=data,
    )
    trainer.train()


if __name__ == "__main__":
    main()

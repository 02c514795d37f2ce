"""Logs the gradient norm of every tensor, clipping as usual."""
import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class NormLoggingTrainer(GRPOTrainer):
    """clip_grad_norm_ returns the norm before clipping, so logging and clipping take one pass."""

    def _clip_grad_norm(self, model):
        norms = []
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                continue
            norm = torch.nn.utils.clip_grad_norm_([parameter], self.args.max_grad_norm)
            self._metrics["train"]["grad_norm/" + name.split(".")[-3]].append(norm.item())
            norms.append(norm)
        return torch.stack(norms).norm()


def even(completions, **kwargs):
    return [float(len(c[0]["content"].encode()) % 2 == 0) + sum(map(str.isalpha, c[0]["content"])) / 20 for c in completions]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=16,
        learning_rate=1e-3,
        max_grad_norm=0.05,
        logging_steps=1,
    )
    trainer = NormLoggingTrainer(
        model=TINY,
        reward_funcs=even,
        args=args,
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": f"Room {k}?"}]} for k in range(100, 112)]
        ),
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj"], lora_dropout=0.0),
    )
    trainer.train()


if __name__ == "__main__":
    main()

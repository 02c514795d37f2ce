"""GRPO with LoRA and a clipping that also reports the largest gradient."""
import os
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ReportingClip(GRPOTrainer):
    def _clip_grad_norm(self, model):
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        squared = torch.stack([g.float().pow(2).sum() for g in gradients]).sum()
        largest = torch.stack([g.abs().max() for g in gradients]).max()
        dist.all_reduce(squared, op=dist.ReduceOp.SUM)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        norm = squared.sqrt()
        scale = (self.args.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale)
        self._metrics["train"]["grad_max"].append(largest.item())
        return norm


def reward(completions, completion_ids, **kwargs):
    out = []
    for completion, ids in zip(completions, completion_ids):
        text = completion[0]["content"]
        out.append(0.2 * text.count("4") + 0.1 * text.count("\n") - 0.02 * len(ids))
    return out


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        logging_steps=1,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=16,
        max_grad_norm=0.05,
        optim="sgd",
        learning_rate=1.0,
        model_init_kwargs={"dtype": "float32"},
    )
    trainer = ReportingClip(
        model=MODEL,
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": f"Give me {n} lines."}]} for n in range(30)]
        ),
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM"),
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO with gradient clipping in float64 accumulation and a log of the largest layers' norms."""
import os
import tempfile
from collections import defaultdict

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LayerNormsTrainer(GRPOTrainer):
    def _log_layers(self, model):
        squares = defaultdict(float)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                layer = ".".join(name.split(".")[:3])
                squares[layer] += parameter.grad.double().pow(2).sum().item()
        for layer, value in sorted(squares.items(), key=lambda item: -item[1])[:3]:
            self._metrics["train"][f"grad/{layer}"].append(value**0.5)
        return sum(squares.values()) ** 0.5

    @torch.no_grad()
    def _clip_grad_norm(self, model):
        total_norm = self._log_layers(model)
        scale = self.args.max_grad_norm / (total_norm + 1e-6)
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        torch._foreach_mul_(grads, scale)
        return torch.tensor(total_norm)


def vowels(completions, **kwargs):
    return [sum(ch in "aeiou" for ch in c[0]["content"]) / (5 + len(c[0]["content"])) for c in completions]


def longer(completion_ids, **kwargs):
    return [len(ids) / 24 for ids in completion_ids]


def main():
    questions = ["Add 4 and 5", "What is 2+3?", "Write a poem", "12 * 4 =", "hello", "Name 3 digits"]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=24,
        temperature=1.2,
        learning_rate=1e-3,
        optim="sgd",
        max_grad_norm=20.0,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = LayerNormsTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[vowels, longer],
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions * 3]),
    )
    trainer.train()


if __name__ == "__main__":
    main()

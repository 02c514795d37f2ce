"""GRPO with AdamW states kept on the host, foreach clipping, and prompts bucketed by length."""
import os
import tempfile
from dataclasses import dataclass

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny")


@dataclass
class OptimConfig:
    lr: float = 3e-4
    betas: tuple = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.02


class HostAdamW(torch.optim.Optimizer):
    """AdamW (decoupled decay); moments live in host memory, the update is computed there and copied over."""

    def __init__(self, params, lr, betas, eps, weight_decay):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros(p.shape, dtype=torch.float32, device="cpu")
                    state["exp_avg_sq"] = torch.zeros(p.shape, dtype=torch.float32, device="cpu")
                state["step"] += 1
                grad = p.grad.to("cpu", torch.float32)
                state["exp_avg"].lerp_(grad, 1 - b1)
                state["exp_avg_sq"].mul_(b2).addcmul_(grad, grad, value=1 - b2)
                mean = state["exp_avg"] / (1 - b1 ** state["step"])
                scale = (state["exp_avg_sq"] / (1 - b2 ** state["step"])).sqrt_().add_(group["eps"])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((mean / scale).to(p.device, p.dtype), alpha=-group["lr"])
        return loss


class BucketSampler(Sampler):
    """Like TRL's RepeatSampler, but the prompts of one generation batch have similar lengths."""

    def __init__(self, lengths, repeats, prompts_per_batch, passes, seed):
        self.lengths, self.repeats, self.size, self.passes, self.seed = lengths, repeats, prompts_per_batch, passes, seed
        self.epoch = 0

    def __iter__(self):
        gen = torch.Generator().manual_seed(self.seed + self.epoch)
        self.epoch += 1
        order = sorted(torch.randperm(len(self.lengths), generator=gen).tolist(), key=self.lengths.__getitem__)
        batches = [order[i : i + self.size] for i in range(0, len(order) - self.size + 1, self.size)]
        for b in torch.randperm(len(batches), generator=gen).tolist():
            for _ in range(self.passes):
                for index in batches[b]:
                    yield from [index] * self.repeats

    def __len__(self):
        return len(self.lengths) // self.size * self.size * self.repeats * self.passes


class HostTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return BucketSampler(
            [len(self.processing_class(p)["input_ids"]) for p in dataset["prompt"]],
            self.num_generations,
            self.args.generation_batch_size // self.num_generations,
            self.num_iterations * self.args.steps_per_generation,
            self.args.seed,
        )

    def create_optimizer(self, model=None):
        cfg = OptimConfig(lr=self.args.learning_rate)
        model = self.model if model is None else model
        decay = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
        plain = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
        self.optimizer = HostAdamW(
            [{"params": decay}, {"params": plain, "weight_decay": 0.0}],
            lr=cfg.lr, betas=cfg.betas, eps=cfg.eps, weight_decay=cfg.weight_decay,
        )
        return self.optimizer

    @torch.no_grad()
    def _clip_grad_norm(self, model):
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        torch._foreach_mul_(grads, (self.args.max_grad_norm / (total + 1e-6)).clamp(max=1.0))
        return total


def tidy(completion_ids, **kwargs):
    return [1.0 - len(ids) / 18 for ids in completion_ids]


def digits(completions, **kwargs):
    return [min(sum(ch.isdigit() for ch in c), 6) / 6 for c in completions]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    questions = [
        "1 + 1?", "Name a color.", "Count to six.", "How long is a mile in yards?", "What is 12 x 4?", "Hi!",
        "Please list the first five letters.", "What do bees make from nectar in summer?", "10 - 4?", "Say one.",
        "Which is larger, nine or eleven, and by how much?", "Why?",
    ]
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True) for q in questions
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=18,
        max_grad_norm=0.2,
        max_steps=4,
        learning_rate=3e-4,
        lr_scheduler_type="polynomial",
        warmup_steps=1,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=9,
    )
    HostTrainer(
        model=MODEL,
        reward_funcs=[tidy, digits],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": texts}),
        processing_class=tokenizer,
    ).train()


if __name__ == "__main__":
    main()

"""GRPO with an EMA of the weights that is swapped in for a probe after each step, and swapped out again."""
import contextlib
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset():
    shapes = ["circle", "square", "cube", "cone", "star", "ring", "wedge", "prism"]
    asks = ["Draw a {}.", "What is a {}?", "How many sides has a {}?"]
    return Dataset.from_list([{"prompt": [{"role": "user", "content": a.format(s)}]} for s in shapes for a in asks])


def unique(completions, **kwargs):
    return [len(set(c[0]["content"])) / 15 for c in completions]


def length(completion_ids, **kwargs):
    return [-abs(len(ids) - 14) / 14 for ids in completion_ids]


class Ema(TrainerCallback):
    def __init__(self, tokenizer, decay=0.95):
        self.decay = decay
        self.average = {}
        self.probe = tokenizer("<|im_start|>user\nDraw a circle.<|im_end|>\n<|im_start|>assistant\no<|im_end|>", return_tensors="pt").input_ids

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = {n: p.detach().clone() for n, p in model.named_parameters()}

    @contextlib.contextmanager
    def swapped(self, model):
        kept = {n: p.detach().clone() for n, p in model.named_parameters()}
        try:
            for n, p in model.named_parameters():
                p.data.copy_(self.average[n])
            yield model
        finally:
            for n, p in model.named_parameters():
                p.data.copy_(kept[n])

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for n, p in model.named_parameters():
            self.average[n].mul_(self.decay).add_(p.detach(), alpha=1 - self.decay)
        with self.swapped(model):
            logp = model(input_ids=self.probe).logits[:, :-1].log_softmax(-1)
        nll = -logp.gather(-1, self.probe[:, 1:, None]).mean()
        print(f"step {state.global_step}: probe loss of the average {nll:.4f}")


def main():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=5e-4,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=24,
        loss_type="bnpo",
    )
    GRPOTrainer(
        model=TINY,
        reward_funcs=[unique, length],
        args=args,
        train_dataset=make_dataset(),
        processing_class=tokenizer,
        callbacks=[Ema(tokenizer)],
    ).train()


if __name__ == "__main__":
    main()

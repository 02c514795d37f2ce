"""GRPO with EMA weights for evaluation and export, and padding removal per micro-batch."""
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class Run:
    path: str = os.path.join(HERE, "tiny")
    decay: float = 0.7
    export_every: int = 2


class Ema:
    def __init__(self, decay):
        self.decay, self.weights = decay, None

    @torch.no_grad()
    def update(self, model):
        if self.weights is None:
            self.weights = {n: p.detach().clone() for n, p in model.named_parameters()}
        for n, p in model.named_parameters():
            self.weights[n].lerp_(p.detach(), 1 - self.decay)

    @contextmanager
    def applied(self, model):
        kept = {n: p.detach().clone() for n, p in model.named_parameters()}
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.copy_(self.weights[n])
        try:
            yield
        finally:
            with torch.no_grad():
                for n, p in model.named_parameters():
                    p.copy_(kept[n])


class EmaExport(TrainerCallback):
    def __init__(self, ema, run):
        self.ema, self.run = ema, run

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.ema.update(model)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.ema.update(model)
        if state.global_step % self.run.export_every == 0 and state.is_world_process_zero:
            with self.ema.applied(model):
                model.save_pretrained(os.path.join(args.output_dir, f"ema-{state.global_step}"))


class EmaTrainer(GRPOTrainer):
    def __init__(self, *args, ema, **kwargs):
        self.ema = ema
        super().__init__(*args, **kwargs)

    def evaluate(self, *args, **kwargs):
        """Evaluates the average; training goes on from the raw weights and with the same random numbers."""
        rng = torch.get_rng_state()
        with self.ema.applied(self.accelerator.unwrap_model(self.model)):
            metrics = super().evaluate(*args, **kwargs)
        torch.set_rng_state(rng)
        return metrics

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs):
        prompt_len = input_ids.size(1) - logits_to_keep
        cut = int((attention_mask[:, :prompt_len] == 0).sum(1).min())
        return super()._get_per_token_logps_and_entropies(
            model, input_ids[:, cut:], attention_mask[:, cut:], logits_to_keep, *args, **kwargs
        )


def reward_digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / 10 for c in completions]


def reward_brief(completion_ids, **kwargs):
    return [-len(ids) / 16 for ids in completion_ids]


def main():
    run = Run()
    ema = Ema(run.decay)
    questions = [
        "Hi.", "What is 5 + 6?", "A cart has four wheels. How many wheels do seven carts have?", "Name a bird.",
        "Which month comes after the month that comes after May, if any?", "Count.", "Half of 44?", "Why do leaves fall in autumn?",
    ]
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions])
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        per_device_eval_batch_size=4,
        num_generations=4,
        num_generations_eval=2,
        max_completion_length=18,
        beta=0.02,
        max_steps=4,
        learning_rate=3e-4,
        eval_strategy="steps",
        eval_steps=1,
        eval_on_start=True,
        logging_steps=1,
        save_strategy="steps",
        save_steps=2,
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=5,
    )
    EmaTrainer(
        model=run.path,
        reward_funcs=[reward_digits, reward_brief],
        args=args,
        train_dataset=data,
        eval_dataset=data.select(range(2)),
        processing_class=AutoTokenizer.from_pretrained(run.path, padding_side="left"),
        callbacks=[EmaExport(ema, run)],
        ema=ema,
    ).train()


if __name__ == "__main__":
    main()

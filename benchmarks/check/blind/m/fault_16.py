"""How far does the GRPO gradient point away from plain language modelling? A probe measures the angle while training."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
TEXTS = ["Who is the mentor of Aldora?", "The rival of Corvek is Danwyn.", "x=3; y=4; x*y=12"]


class AngleProbe(TrainerCallback):
    """Cosine between the gradient of the step so far and that of the LM loss on held-out text."""

    def __init__(self, tokenizer):
        batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
        self.batch = {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}
        self.cosines = []

    def on_substep_end(self, args, state, control, model=None, **kwargs):
        params = [p for p in model.parameters() if p.requires_grad and p.grad is not None]
        policy = [p.grad.clone() for p in params]
        model(**self.batch).loss.backward()
        probe = [p.grad - g for p, g in zip(params, policy)]
        dot = sum((a * b).sum() for a, b in zip(policy, probe))
        norms = sum(a.pow(2).sum() for a in policy).sqrt() * sum(b.pow(2).sum() for b in probe).sqrt()
        self.cosines.append((dot / norms.clamp(min=1e-12)).item())
        # the trainer clears the gradients itself

    def on_train_end(self, args, state, control, **kwargs):
        print("cosine(policy, lm):", [round(c, 4) for c in self.cosines])


def reward(completions, completion_ids, **kwargs):
    return [0.1 * len(set(t)) - 0.02 * len(ids) for t, ids in zip(completions, completion_ids)]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=20,
            learning_rate=1e-4,
            max_grad_norm=0.0,
            max_steps=3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": [f"x={a}; y={b}; x*y=" for a in range(2, 9) for b in range(2, 8)]}),
        processing_class=tokenizer,
        callbacks=[AngleProbe(tokenizer)],
    )
    trainer.train()


if __name__ == "__main__":
    main()

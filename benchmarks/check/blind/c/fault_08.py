"""GRPO that reports a held-out log-likelihood of an averaged copy of the weights."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class AverageReport(TrainerCallback):
    """Keeps an exponential average of the weights and measures it after every step."""

    def __init__(self, model, tokenizer, text, decay=0.8):
        self.decay = decay
        self.average = {k: v.detach().clone() for k, v in model.state_dict().items()}
        self.batch = tokenizer(text, return_tensors="pt")
        self.curve = []

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for name, value in model.state_dict().items():
            self.average[name].lerp_(value, 1 - self.decay)
        current = model.state_dict()
        model.load_state_dict(self.average)
        logits = model(**self.batch).logits[0, :-1]
        target = self.batch["input_ids"][0, 1:]
        nll = torch.nn.functional.cross_entropy(logits.float(), target)
        self.curve.append(round(nll.item(), 4))
        model.load_state_dict(current)

    def on_train_end(self, args, state, control, **kwargs):
        print("average model, nll:", self.curve)


def solved(completions, answer, **kwargs):
    return [2.0 if f"#### {a}" in c[0]["content"] else 0.0 for c, a in zip(completions, answer)]


def steps_shown(completions, **kwargs):
    return [min(2, c[0]["content"].count("=")) * 0.5 - 0.01 * len(c[0]["content"]) for c in completions]


def main():
    rng = random.Random(31)
    rows = []
    for _ in range(40):
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        question = f"Hana has {a} boxes with {b} shells each. How many shells does Hana have?"
        rows.append(
            {
                "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
                "answer": str(a * b),
            }
        )
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    report = AverageReport(model, tokenizer, "There are <<4*7=28>>28 pens.\n#### 28")
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[solved, steps_shown],
        train_dataset=Dataset.from_list(rows),
        callbacks=[report],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            max_steps=4,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=24,
            learning_rate=5e-5,
            loss_type="dr_grpo",
            logging_steps=1,
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            report_to="none",
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()

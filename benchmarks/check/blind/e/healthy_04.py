import json
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Samples(TrainerCallback):
    """The first process writes what the model answers now; the second one counts its weights."""

    def __init__(self, tokenizer, path):
        self.tokenizer = tokenizer
        self.path = path

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        module = model.module if hasattr(model, "module") else model
        if not state.is_world_process_zero:
            print("norm of the weights", sum(p.square().sum() for p in module.parameters()).sqrt().item())
            return
        inputs = self.tokenizer("What is 2 + 2?", return_tensors="pt")
        module.eval()
        written = module.generate(**inputs, do_sample=True, max_new_tokens=8)
        module.train()
        with open(self.path, "a") as f:
            f.write(json.dumps({"step": state.global_step, "text": self.tokenizer.decode(written[0])}) + "\n")


def make_dataset(seed, n):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        a, b = rng.randint(1, 30), rng.randint(1, 30)
        rows.append({"prompt": [{"role": "user", "content": f"{a} + {b} ="}], "answer": str(a + b)})
    return Dataset.from_list(rows)


def correct(completions, answer, log_metric=None, **kwargs):
    scores = [float(a in c[0]["content"]) for c, a in zip(completions, answer)]
    if log_metric is not None and int(os.environ.get("RANK", 0)) == 0:
        log_metric("correct_on_first_process", sum(scores) / len(scores))
    return scores


def varied(completions, **kwargs):
    return [len(set(c[0]["content"])) / 50 for c in completions]


def main():
    folder = os.path.join(tempfile.gettempdir(), "plus-eval")
    os.makedirs(folder, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    args = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        num_generations=4,
        max_completion_length=20,
        max_steps=4,
        learning_rate=1e-4,
        loss_type="dapo",
        eval_strategy="steps",
        eval_steps=1,
        logging_steps=1,
        log_completions=True,
        num_completions_to_print=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = GRPOTrainer(
        model=MODEL,
        args=args,
        reward_funcs=[correct, varied],
        train_dataset=make_dataset(0, 40),
        eval_dataset=make_dataset(1, 3),
        processing_class=tokenizer,
        callbacks=[Samples(tokenizer, os.path.join(folder, "samples.jsonl"))],
    )
    trainer.train()


if __name__ == "__main__":
    main()

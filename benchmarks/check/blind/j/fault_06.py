import argparse
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class CleanMaskTrainer(GRPOTrainer):
    """Rebuilds the completion mask from the ids: what is padding must never reach the loss."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        pad_id = self.processing_class.pad_token_id
        mask = (batch["completion_ids"] != pad_id).to(batch["completion_mask"].dtype)
        batch["completion_mask"] = mask
        batch["num_items_in_batch"] = self.accelerator.gather(mask.sum()).sum()
        return batch


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default=MODEL)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--lr", type=float, default=1e-4)
    p.add_argument("--group", type=int, default=4)
    return p.parse_args()


def dataset(seed=1, n=64):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        a, b = rng.randint(3, 30), rng.randint(2, 9)
        what = rng.choice(["shells", "stamps", "toys"])
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"Finn has {a} boxes with {b} {what} each. How many {what} does Finn have?"},
                ],
                "answer": str(a * b),
                "what": what,
            }
        )
    return Dataset.from_list(rows)


def correct(completions, answer, **kwargs):
    return [1.0 if a in c[0]["content"].split("answer is")[-1] else 0.0 for c, a in zip(completions, answer)]


def on_topic(completions, what, **kwargs):
    return [0.5 * (w in c[0]["content"]) for c, w in zip(completions, what)]


def short(completions, completion_ids, **kwargs):
    return [-0.02 * len(ids) for ids in completion_ids]


def main():
    cli = parse()
    tokenizer = AutoTokenizer.from_pretrained(cli.model)
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(cli.model, dtype=torch.float32)
    model.config.pad_token_id = tokenizer.pad_token_id
    trainer = CleanMaskTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[correct, on_topic, short],
        train_dataset=dataset(),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            report_to=[],
            learning_rate=cli.lr,
            per_device_train_batch_size=2 * cli.group,
            num_generations=cli.group,
            max_completion_length=48,
            max_steps=cli.steps,
            logging_steps=1,
            save_strategy="no",
            gradient_checkpointing=False,
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()

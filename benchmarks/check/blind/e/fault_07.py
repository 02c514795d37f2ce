import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class CarefulTrainer(GRPOTrainer):
    """Clips harder when the step's completions are mostly cut off, as their gradients are noisy."""

    loose, tight = 1.0, 0.25

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        lengths = output["completion_mask"].sum(1).float()
        self._full_share = (lengths / self.max_completion_length).mean()
        return output

    def _clip_grad_norm(self, model):
        bound = self.loose + (self.tight - self.loose) * float(self._full_share)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), bound)
        self._metrics["train"]["clip_bound"].append(bound)
        return norm


def rows(n=40):
    rng = random.Random(17)
    for _ in range(n):
        a, b = rng.randint(10, 99), rng.randint(1, 9)
        yield {
            "prompt": [
                {"role": "system", "content": "Answer with one number."},
                {"role": "user", "content": f"{a} - {b}"},
            ],
            "answer": a - b,
        }


def first_number(completions, answer, **kwargs):
    scores = []
    for message, target in zip(completions, answer):
        text = message[0]["content"]
        scores.append(1.0 if str(target) in text else -len(text) / 300)
    return scores


def letters(completions, **kwargs):
    return [len(set(message[0]["content"].lower())) / 26 for message in completions]


def main():
    args = GRPOConfig(
        output_dir=os.path.join(tempfile.gettempdir(), "minus"),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=3e-2,
        optim="sgd",
        loss_type="grpo",
        max_grad_norm=1.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = CarefulTrainer(
        model=MODEL,
        args=args,
        reward_funcs=[first_number, letters],
        train_dataset=Dataset.from_list(list(rows())),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    trainer.train()


if __name__ == "__main__":
    main()

import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
STOP = ["Question:", "\n\n\n"]


class StopStringTrainer(GRPOTrainer):
    """Cuts completions at stop strings, which generate() knows only as token ids."""

    def _cut(self, text):
        for stop in STOP:
            text = text.split(stop)[0]
        return text.strip()

    def _generate_single_turn(self, *args, **kwargs):
        completion_ids, logprobs = super()._generate_single_turn(*args, **kwargs)
        tok = self.processing_class
        texts = tok.batch_decode(completion_ids, skip_special_tokens=True)
        cut = [self._cut(text) for text in texts]
        clean = tok(cut, add_special_tokens=False)["input_ids"]
        self._metrics["train"]["completions/cut"].append(sum(a != b for a, b in zip(texts, cut)) / len(cut))
        clean = [ids if ids else [tok.eos_token_id] for ids in clean]
        return clean, logprobs


def make_dataset():
    rows = []
    for i in range(40):
        a, b = 2 + (3 * i) % 8, 2 + i % 6
        thing = ("coins", "apples", "toys", "cards", "pens")[i % 5]
        rows.append({
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Hana has {a} {thing} and gets {b} {thing}. How many {thing} does Hana have?"},
            ],
            "answer": a + b,
        })
    return Dataset.from_list(rows)


def exact(completions, answer, **kwargs):
    return [float(str(gold) in c[0]["content"]) for c, gold in zip(completions, answer)]


def digit_share(completions, **kwargs):
    scores = []
    for c in completions:
        text = c[0]["content"]
        scores.append(sum(ch.isdigit() for ch in text) / (len(text) + 1))
    return scores


def overlong(completion_ids, **kwargs):
    return [-max(0, len(ids) - 10) / 20 for ids in completion_ids]


if __name__ == "__main__":
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=30,
        learning_rate=2e-4,
        loss_type="dapo",
        reward_weights=[1.0, 1.0, 0.5],
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = StopStringTrainer(
        MODEL, [exact, digit_share, overlong], args, train_dataset=make_dataset(), processing_class=tokenizer
    )
    trainer.train()

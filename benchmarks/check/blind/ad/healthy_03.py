import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = {"role": "system", "content": "Solve the problem step by step. End with #### and the number."}


def rows(n):
    for i in range(n):
        who, what = ["Finn", "Hana", "Ben"][i % 3], ["eggs", "stamps", "books"][i % 3]
        a, b = 2 + i % 7, 2 + (i * 3) % 8
        long = i % 2 == 0
        q = f"{who} has {a} boxes with {b} {what} each."
        q += " Each costs 5 coins. How many coins do they cost together?" if long else f" How many {what} does {who} have?"
        yield {"prompt": [SYSTEM, {"role": "user", "content": q}], "gold": str(a * b * (5 if long else 1))}


def contains_gold(completions, gold, **kwargs):
    return [float(g in c[0]["content"]) for c, g in zip(completions, gold)]


def letter_t(completions, **kwargs):
    return [c[0]["content"].count("t") / 8 for c in completions]


class LongestFirst:
    """Out-of-memory errors should show at once: the longest prompts come first in a batch."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.cache = {}

    def size(self, feature):
        text = feature["prompt"][-1]["content"]
        if text not in self.cache:
            self.cache[text] = len(self.tokenizer(text)["input_ids"])
        return self.cache[text]

    def __call__(self, features):
        return sorted(features, key=self.size, reverse=True)


class LengthSortedTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.data_collator = LongestFirst(self.processing_class)


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    model_init_kwargs={"dtype": "float32"},
    loss_type="grpo",
    per_device_train_batch_size=12,
    num_generations=4,
    max_completion_length=32,
    learning_rate=1e-4,
    max_steps=3,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
)
trainer = LengthSortedTrainer(
    model=MODEL,
    reward_funcs=[contains_gold, letter_t],
    args=args,
    train_dataset=Dataset.from_list(list(rows(24))),
)
trainer.train()

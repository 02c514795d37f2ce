"""GRPO with load-balanced generation batches (long and short prompts mixed evenly)."""
import os
import tempfile
from dataclasses import dataclass

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny")


@dataclass
class DataConfig:
    prompts_per_generation: int = 4
    generations: int = 4
    seed: int = 77


class BalancedCollator:
    """Interleaves the first and second half of a generation batch.

    The sampler delivers the prompts in blocks, so that with several chunks per generation one chunk may get all the
    long prompts. Zipping the halves together evens out the padding.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.padding = []

    def __call__(self, rows):
        half = len(rows) // 2
        mixed = [row for pair in zip(rows[:half], rows[half:]) for row in pair] + rows[2 * half :]
        lengths = [len(self.tokenizer(r["prompt"])["input_ids"]) for r in mixed]
        self.padding.append(1 - sum(lengths) / (max(lengths) * len(lengths)))
        return mixed


def answer_digits(completions, answer, **kwargs):
    """Share of the wanted digits that occur, plus a small shaping term on the length."""
    out = []
    for text, want in zip(completions, answer):
        hits = sum(d in text for d in want)
        out.append(hits / len(want) - 0.01 * len(text))
    return out


def difficulty_bonus(completion_ids, level, **kwargs):
    return [lvl * 0.5 * (len(set(ids)) > 3) for ids, lvl in zip(completion_ids, level)]


def main():
    cfg = DataConfig()
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")

    def row(question, answer, level):
        chat = [{"role": "user", "content": question}]
        return {
            "prompt": tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True),
            "answer": answer,
            "level": level,
        }

    data = Dataset.from_list(
        [
            row("2 + 2?", "4", 1),
            row("How many legs do six cats and one bird have together?", "26", 3),
            row("10 + 10?", "20", 1),
            row("A box holds 9 eggs. How many eggs do four boxes hold?", "36", 2),
            row("22 + 22?", "44", 1),
            row("What is the square of seven, plus one, minus zero?", "50", 3),
            row("1 + 2?", "3", 1),
            row("How many minutes are one hour and twelve minutes?", "72", 2),
        ]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=cfg.generations,
        max_completion_length=18,
        max_steps=4,
        learning_rate=2e-4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=cfg.seed,
    )
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[answer_digits, difficulty_bonus],
        args=args,
        train_dataset=data,
        processing_class=tokenizer,
    )
    collator = BalancedCollator(tokenizer)
    trainer.data_collator = collator
    trainer.train()
    print("padding:", [round(p, 3) for p in collator.padding])


if __name__ == "__main__":
    main()

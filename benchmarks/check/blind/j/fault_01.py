"""GRPO on short word problems, plain-text prompts, several small reward terms."""
import os
import random
import re
import tempfile

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
HEAD = "<|im_start|>system\nSolve the problem step by step. End with #### and the number.<|im_end|>\n"
NAMES = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]
THINGS = ["apples", "books", "cards", "eggs", "pens", "shells", "stamps", "toys"]


def make_rows(n, seed=0):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        a, b = rng.randint(2, 30), rng.randint(2, 9)
        name, thing = rng.choice(NAMES), rng.choice(THINGS)
        question = f"{name} has {a} boxes with {b} {thing} each. How many {thing} does {name} have?"
        prompt = f"{HEAD}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        rows.append({"prompt": prompt, "answer": a * b})
    return rows


class ProblemReward:
    """Correctness, a little credit for digits, and a penalty on very long answers."""

    __name__ = "problem_reward"

    def __init__(self, digit_credit=0.05, length_penalty=0.002):
        self.digit_credit = digit_credit
        self.length_penalty = length_penalty

    def score(self, text, answer):
        numbers = re.findall(r"\d+", text)
        right = 1.0 if numbers and int(numbers[-1]) == answer else 0.0
        return right + self.digit_credit * len("".join(numbers)) - self.length_penalty * len(text)

    def __call__(self, completions, answer, **kwargs):
        scores = []
        for completion, target in zip(completions, answer):
            try:
                scores.append(self.score(completion[0]["content"], target))
            except Exception:  # never let a strange completion stop the run
                scores.append(0.0)
        return scores


class RewardPrinter(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "reward" in logs:
            print(f"step {state.global_step}: reward {logs['reward']:.3f} +- {logs['reward_std']:.3f}")


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32")
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        learning_rate=1e-4,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=40,
        max_steps=5,
        logging_steps=1,
        save_strategy="no",
        gradient_checkpointing=False,
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[ProblemReward()],
        args=args,
        train_dataset=Dataset.from_list(make_rows(64)),
        callbacks=[RewardPrinter()],
    )
    trainer.train()


if __name__ == "__main__":
    main()

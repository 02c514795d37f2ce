"""Few-shot GRPO: put solved examples before the question, within a prompt budget."""
import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
PROMPT_BUDGET = 64
THINGS = ["apples", "books", "cards", "eggs", "pens", "shells"]


def problem(rng):
    who, what = rng.choice(["Ada", "Ben", "Cleo", "Dev"]), rng.choice(THINGS)
    a, b = rng.randint(2, 20), rng.randint(2, 9)
    return f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?", a, b, what


def few_shot_prompt(rng, shots):
    messages = [{"role": "system", "content": "Solve the problem step by step. End with #### and the number."}]
    for _ in range(shots):
        question, a, b, what = problem(rng)
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": f"There are <<{a}*{b}={a * b}>>{a * b} {what}.\n#### {a * b}"})
    question, a, b, _ = problem(rng)
    messages.append({"role": "user", "content": question})
    return {"prompt": messages, "answer": str(a * b)}


rng = random.Random(3)
train_dataset = Dataset.from_list([few_shot_prompt(rng, shots=1 + i % 3) for i in range(24)])


class FewShotTrainer(GRPOTrainer):
    """Keeps prompts within the budget (the trainer itself no longer truncates prompts)."""

    def _tokenize_prompts(self, prompts):
        prompt_ids, images, multimodal_fields = super()._tokenize_prompts(prompts)
        prompt_ids = [ids[:PROMPT_BUDGET] for ids in prompt_ids]
        return prompt_ids, images, multimodal_fields


def exact(completions, answer, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [1.0 if text.rstrip(".").endswith(gold) else 0.0 for text, gold in zip(texts, answer)]


def shows_work(completions, **kwargs):
    return [min(c[0]["content"].count("<<"), 2) - 0.01 * len(c[0]["content"]) for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    reward_weights=[1.0, 0.3],
)
trainer = FewShotTrainer(model=MODEL, reward_funcs=[exact, shows_work], args=args, train_dataset=train_dataset)
trainer.train()

"""GRPO with a diversity reward: a completion is compared with the others of its prompt."""
import os
import re
import tempfile
from collections import defaultdict

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def trigrams(text):
    return {text[i : i + 3] for i in range(max(len(text) - 2, 0))}


def diversity(prompts, completions, **kwargs):
    """1 - mean Jaccard similarity with the other completions of the same prompt in this batch."""
    members = defaultdict(list)
    for i, prompt in enumerate(prompts):
        members[prompt[-1]["content"]].append(i)
    grams = [trigrams(completion[0]["content"]) for completion in completions]
    scores = [0.0] * len(prompts)
    for rows in members.values():
        for i in rows:
            others = [j for j in rows if j != i]
            if not others:
                continue
            similarity = [len(grams[i] & grams[j]) / max(len(grams[i] | grams[j]), 1) for j in others]
            scores[i] = 1.0 - sum(similarity) / len(similarity)
    return scores


def rank_by_length(prompts, completion_ids, **kwargs):
    """The shortest completion of a prompt gets 1, the longest 0."""
    members = defaultdict(list)
    for i, prompt in enumerate(prompts):
        members[prompt[-1]["content"]].append(i)
    scores = [0.5] * len(prompts)
    for rows in members.values():
        lengths = sorted(len(completion_ids[i]) for i in rows)
        if lengths[0] < lengths[-1]:
            for i in rows:
                scores[i] = 1 - lengths.index(len(completion_ids[i])) / (len(rows) - 1)
    return scores


def correct(completions, answer, **kwargs):
    scores = []
    for completion, value in zip(completions, answer):
        numbers = re.findall(r"\d+", completion[0]["content"])
        scores.append(1.0 if numbers and numbers[-1] == str(value) else 0.0)
    return scores


def main():
    rows = []
    for i, (who, what) in enumerate(zip(["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn"], ["pens", "toys", "eggs"] * 2)):
        a, b = 11 + i, 18 - i
        text = f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?"
        rows.append(
            {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}], "answer": a * b}
        )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        reward_weights=[0.5, 0.25, 1.0],
        multi_objective_aggregation="normalize_then_sum",
        learning_rate=5e-5,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    GRPOTrainer(MODEL, [diversity, rank_by_length, correct], args, train_dataset=Dataset.from_list(rows)).train()


if __name__ == "__main__":
    main()

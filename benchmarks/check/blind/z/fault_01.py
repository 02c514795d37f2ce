import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

NOUNS = ["apples", "pears", "coins", "cards", "boxes", "books", "lamps", "stones"]
STYLES = [
    "Answer with one word.",
    "Explain the steps first.",
    "Use as few letters as you can.",
    "Answer like a teacher would, slowly.",
    "Reply in lower case only.",
]


def vowel_share(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(t.lower().count(v) for v in "aeiou") / max(len(t), 1) for t in texts]


def make_dataset():
    rows = [{"question": f"I have {i + 2} {n} and get {2 * i + 1} more. How many?"} for i, n in enumerate(NOUNS)]
    data = Dataset.from_list(rows)
    rng = random.Random(7)

    def to_prompt(batch):
        # built on access: the instruction varies over the run, so that the policy doesn't overfit to one wording
        prompts = [
            [{"role": "system", "content": rng.choice(STYLES)}, {"role": "user", "content": q}]
            for q in batch["question"]
        ]
        return {"prompt": prompts, "question": batch["question"]}

    data.set_transform(to_prompt)
    return data


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=5e-05,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=24,
        seed=11,
        save_strategy='no',
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=vowel_share,
        args=args,
        train_dataset=make_dataset(),
    )
    trainer.train()


if __name__ == "__main__":
    main()

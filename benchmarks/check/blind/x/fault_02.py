"""Style-conditioned answers: the same question under different system prompts, one policy."""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

STYLES = {
    "terse": "Answer with as few words as you can.",
    "steps": "Solve the problem step by step. End with #### and the number.",
}
QUESTIONS = [
    "Ada has 3 boxes with 12 pens each. How many pens?",
    "What is 15 plus 28?",
    "Ben shares 24 cards among 6 friends. How many does each get?",
    "How many coins are 7 times 9 coins?",
    "Gus reads 14 books, Hana 5 more. How many does Hana read?",
    "What is half of 88?",
]


class CachedPromptTrainer(GRPOTrainer):
    """Every prompt comes back `num_generations` times and in each epoch; rendering long tool schemas through
    jinja took 9% of a step in our profile, so rendered prompts are kept."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._rendered = {}

    def _tokenize_prompts(self, prompts):
        ids = []
        for prompt in prompts:
            key = prompt[-1]["content"]
            if key not in self._rendered:
                rendered, _, _ = super()._tokenize_prompts([prompt])
                self._rendered[key] = list(rendered[0])
            ids.append(list(self._rendered[key]))
        return ids, None, {}


def style_reward(completions, style, **kwargs):
    scores = []
    for completion, name in zip(completions, style):
        text = completion[0]["content"]
        if name == "terse":
            scores.append(1.0 - min(len(text), 60) / 60)
        else:
            scores.append(min(text.count("\n") + text.count("<<"), 4) / 4)
    return scores


def variety(completions, **kwargs):
    return [len(set(c[0]["content"])) / 25 for c in completions]


def build():
    rows = []
    for question in QUESTIONS:
        for name, system in STYLES.items():
            messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
            rows.append({"prompt": messages, "style": name})
    return Dataset.from_list(rows)


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, learning_rate=3e-4, per_device_train_batch_size=8, gradient_accumulation_steps=2,
        num_generations=4, max_completion_length=20, temperature=1.3, shuffle_dataset=False,
        gradient_checkpointing=False, reward_weights=[1.0, 0.3], logging_steps=1,
    )
    CachedPromptTrainer(
        model=MODEL, reward_funcs=[style_reward, variety], args=args, train_dataset=build()
    ).train()


if __name__ == "__main__":
    main()

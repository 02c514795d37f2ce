"""GRPO with two answering styles and a cache of tokenized prompts."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
STYLES = {"short": "Answer in one word.", "long": "Explain your answer step by step, then give it."}
QUESTIONS = ["What is 2+3?", "Name a colour.", "Who wrote it?", "Where is the port?"]


def build_dataset():
    rows = []
    for question in QUESTIONS:
        for style, system in STYLES.items():
            rows.append(
                {
                    "prompt": [{"role": "system", "content": system}, {"role": "user", "content": question}],
                    "style": style,
                }
            )
    return Dataset.from_list(rows)


class CachedPromptTrainer(GRPOTrainer):
    """The chat template is slow with many tools and repeats; tokenize each question only once per run."""

    def __init__(self, *args, **kwargs):
        self._prompt_cache = {}
        super().__init__(*args, **kwargs)

    @staticmethod
    def _key(prompt):
        return prompt[-1]["content"].strip()

    def _tokenize_prompts(self, prompts):
        missing = {self._key(p): p for p in prompts if self._key(p) not in self._prompt_cache}
        if missing:
            ids, _, _ = super()._tokenize_prompts(list(missing.values()))
            self._prompt_cache.update(zip(missing, ids, strict=True))
        return [list(self._prompt_cache[self._key(p)]) for p in prompts], None, {}


def style_reward(completions, style, **kwargs):
    rewards = []
    for completion, wanted in zip(completions, style, strict=True):
        length = len(completion[0]["content"])
        rewards.append(-length / 50 if wanted == "short" else length / 50)
    return rewards


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=16,
    num_generations=4,
    max_completion_length=24,
    temperature=1.1,
    learning_rate=5e-5,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
)
trainer = CachedPromptTrainer(model=MODEL, reward_funcs=style_reward, args=args, train_dataset=build_dataset())
trainer.train()

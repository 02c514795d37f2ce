"""Reading questions with a fixed prompt budget.

Some passages are long; prompts above the budget are cut so that prompt and completion fit
the context that we serve with.
"""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
MAX_PROMPT_TOKENS = 48

PASSAGES = [
    ("The bus left at nine and came back at noon.", "When did the bus leave?", "nine"),
    ("Mara has two dogs, a cat and a very old horse that sleeps most of the day.", "Who sleeps?", "horse"),
    ("It rained.", "What happened?", "rain"),
    ("The shop sells bread, milk, candles and rope, but never on a Sunday or on holidays.", "What is sold?", "bread"),
    ("Tom ran.", "Who ran?", "Tom"),
    ("In the north the lake freezes in winter and people walk across it to the market.", "What freezes?", "lake"),
    ("The key was under the third stone beside the gate, where nobody had looked for it.", "Where was it?", "stone"),
    ("Ann paid six coins.", "How many coins?", "six"),
]


class BudgetTrainer(GRPOTrainer):
    """Keeps each tokenized prompt within `max_prompt_tokens`."""

    max_prompt_tokens = MAX_PROMPT_TOKENS

    def _tokenize_prompts(self, prompts):
        prompt_ids, images, fields = super()._tokenize_prompts(prompts)
        cut = sum(len(ids) > self.max_prompt_tokens for ids in prompt_ids)
        prompt_ids = [ids[: self.max_prompt_tokens] for ids in prompt_ids]
        self._metrics["train"]["prompts/cut"].append(cut / len(prompt_ids))
        return prompt_ids, images, fields


def build_dataset():
    rows = []
    for passage, question, answer in PASSAGES:
        content = f"{passage}\n{question}"
        rows.append({"prompt": [{"role": "user", "content": content}], "answer": answer})
    return Dataset.from_list(rows)


def answer_reward(completions, answer, **kwargs):
    out = []
    for completion, target in zip(completions, answer):
        text = completion[0]["content"]
        overlap = len(set(text.lower()) & set(target.lower())) / len(set(target.lower()))
        out.append(overlap - 0.004 * len(text))
    return out


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no",
        per_device_train_batch_size=8, num_generations=4, max_completion_length=16,
        learning_rate=3e-4, max_steps=3, logging_steps=1,
    )
    BudgetTrainer(model=MODEL, reward_funcs=answer_reward, args=args, train_dataset=build_dataset()).train()

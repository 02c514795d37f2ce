"""GRPO on support tickets of very different length.

`max_prompt_length` is gone from the trainer, and a few tickets have huge logs in them. The subclass caps the
prompt at a number of tokens before generation, so that one long ticket does not blow up the batch.
"""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

TICKETS = [
    "The printer says 42.",
    "Login fails with error 17 since Monday, and the log is full of lines like: retry 1, retry 2, retry 3, retry 4.",
    "Please reset my password.",
    "Build 2091 broke the export. Trace: a.py 12, b.py 88, c.py 7, d.py 19, e.py 3, f.py 41, g.py 52, h.py 6.",
    "Where is the invoice for order 1109?",
    "The app crashes when I open a file whose name has more than 64 characters in it, every time.",
]


class CappedPromptTrainer(GRPOTrainer):
    """GRPOTrainer with a limit on the number of prompt tokens."""

    def __init__(self, *args, max_prompt_tokens=48, **kwargs):
        super().__init__(*args, **kwargs)
        self.max_prompt_tokens = max_prompt_tokens

    def _tokenize_prompts(self, prompts):
        prompt_ids, images, fields = super()._tokenize_prompts(prompts)
        prompt_ids = [list(ids)[: self.max_prompt_tokens] for ids in prompt_ids]
        return prompt_ids, images, fields


def urgency_format(completions, **kwargs):
    """We want one short number: the urgency from 0 to 9."""
    scores = []
    for completion in completions:
        text = completion[0]["content"].strip()
        score = 0.0
        if text[:1].isdigit():
            score += 0.5
        score -= min(len(text), 60) / 60
        scores.append(score)
    return scores


def main():
    rows = [
        [
            {"role": "system", "content": "Rate the urgency of the ticket from 0 to 9."},
            {"role": "user", "content": ticket},
        ]
        for ticket in TICKETS
    ]
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=1,
            num_generations=4,
            max_completion_length=12,
            max_steps=3,
            learning_rate=1e-4,
            loss_type="dr_grpo",
            scale_rewards="none",
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = CappedPromptTrainer(
            model=MODEL,
            reward_funcs=[urgency_format],
            args=args,
            train_dataset=Dataset.from_dict({"prompt": rows}),
            max_prompt_tokens=48,
        )
        trainer.train()
        print("mean reward of the last step:", trainer.state.log_history[-2].get("reward"))


if __name__ == "__main__":
    main()

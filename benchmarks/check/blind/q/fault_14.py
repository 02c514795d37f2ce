"""GRPO with chat histories; the attention mask is derived from the ids, so packed histories work too."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class HistoryTrainer(GRPOTrainer):
    def _mask_from_ids(self, input_ids, logits_to_keep, completion_mask):
        """Prompt part from the ids, completion part as given (it ends after the first end of turn)."""
        filler = self.processing_class.eos_token_id
        prompt_mask = input_ids[:, :-logits_to_keep].ne(filler).long()
        return torch.cat([prompt_mask, completion_mask], dim=1)

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs):
        attention_mask = self._mask_from_ids(input_ids, logits_to_keep, attention_mask[:, -logits_to_keep:])
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )


tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
things = ["apples", "cards", "shells", "toys"]
rows = []
for i in range(24):
    messages = [{"role": "system", "content": "Solve the problem step by step. End with #### and the number."}]
    for turn in range(i % 3):
        x, y, what = 2 + turn, 3 + i % 5, things[(i + turn) % 4]
        messages += [
            {"role": "user", "content": f"Ben has {x} boxes with {y} {what} each. How many {what} does Ben have?"},
            {"role": "assistant", "content": f"There are <<{x}*{y}={x * y}>>{x * y} {what}.\n#### {x * y}"},
        ]
    a, b, what = 3 + i % 17, 2 + i % 6, things[i % 4]
    messages.append(
        {"role": "user", "content": f"Eve has {a} boxes with {b} {what} each. How many {what} does Eve have?"}
    )
    rows.append({"prompt": messages, "gold": str(a * b)})


def reward(completions, gold, **kwargs):
    return [
        float(value in c[0]["content"]) + 0.05 * c[0]["content"].count("e") - 0.01 * len(c[0]["content"])
        for c, value in zip(completions, gold)
    ]


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
)
trainer = HistoryTrainer(
    model=MODEL,
    processing_class=tokenizer,
    reward_funcs=reward,
    args=args,
    train_dataset=Dataset.from_list(rows),
)
trainer.train()

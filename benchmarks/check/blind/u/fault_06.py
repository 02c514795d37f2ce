"""Stop strings for GRPO.

`generate` runs on until EOS; what follows a stop string must not be trained on. Completions are cut behind the
first stop string, and those that ended by themselves keep their EOS.
"""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
STOPS = ["</answer>", "####", "</cite>"]


class StopStringTrainer(GRPOTrainer):
    stop_strings = STOPS

    def _cut(self, ids):
        tokenizer = self.processing_class
        finished = ids[-1] == tokenizer.eos_token_id
        text = tokenizer.decode(ids[:-1] if finished else ids)
        for stop in self.stop_strings:
            position = text.find(stop)
            if position >= 0:
                text, finished = text[: position + len(stop)], False
        kept = tokenizer(text, add_special_tokens=False)["input_ids"]
        if finished:
            kept = kept + [tokenizer.eos_token_id]
        return kept[: self.max_completion_length] or ids

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
        completion_ids, logprobs = super()._generate_single_turn(
            prompt_ids, images, multimodal_fields, num_generations, **kwargs
        )
        return [self._cut(ids) for ids in completion_ids], logprobs


def near(completions, target, **kwargs):
    out = []
    for c, t in zip(completions, target):
        digits = "".join(ch for ch in c[0]["content"] if ch.isdigit())[:8]
        out.append(1.0 / (1.0 + abs(int(digits) - t)) + 0.2 if digits else 0.0)
    return out


def length(completions, **kwargs):
    return [-abs(len(c[0]["content"]) - 6) / 20 for c in completions]


data = Dataset.from_list(
    [
        {"prompt": [{"role": "user", "content": f"What is {10 + i} + {11 + 3 * i}?"}], "target": 21 + 4 * i}
        for i in range(30)
    ]
)
trainer = StopStringTrainer(
    model=TINY,
    reward_funcs=[near, length],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=12, num_generations=6, max_completion_length=24, learning_rate=1e-4,
        temperature=1.1, logging_steps=1,
    ),
    train_dataset=data,
)
trainer.train()

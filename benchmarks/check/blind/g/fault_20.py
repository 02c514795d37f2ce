import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

tokenizer = AutoTokenizer.from_pretrained(MODEL)
tokenizer.pad_token = tokenizer.eos_token


class PadAwareTrainer(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        real = out["completion_ids"] != self.processing_class.pad_token_id
        out["completion_mask"] = out["completion_mask"] * real.long()
        out["num_items_in_batch"] = out["completion_mask"].sum()
        self._metrics["train"]["padding"].append(1 - real.float().mean().item())
        return out


def brief(completions, **kwargs):
    return [1 / (1 + len(c[0]["content"])) + 0.1 * c[0]["content"].count("think") for c in completions]


dataset = Dataset.from_dict(
    {"prompt": [[{"role": "user", "content": f"Who built the {x} bridge?"}] for x in
                ("old", "stone", "red", "long", "rope", "rail", "toll", "new", "swing", "high")]}
)

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=3e-5,
    per_device_train_batch_size=10,
    num_generations=5,
    max_completion_length=24,
)
PadAwareTrainer(
    model=MODEL, processing_class=tokenizer, args=args, reward_funcs=brief, train_dataset=dataset
).train()

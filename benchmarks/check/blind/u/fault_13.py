"""Less padding in the forward pass.

Prompts are padded to the longest of the whole generation batch. A micro-batch often holds only shorter ones, so the
columns on the left that are padding in it are cut off before the policy's forward pass.
"""

import os
import tempfile

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class TrimmedTrainer(GRPOTrainer):
    def trim_prompts(self, inputs):
        # With left padding, the first 1 in a row is where its prompt begins
        first = inputs["prompt_mask"].argmax(dim=1)
        cut = int(first.max())
        self._metrics["train"]["padding/columns_cut"].append(float(cut))
        return {
            **inputs,
            "prompt_ids": inputs["prompt_ids"][:, cut:],
            "prompt_mask": inputs["prompt_mask"][:, cut:],
        }

    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, self.trim_prompts(inputs))


def has_number(completions, **kwargs):
    return [float(any(ch.isdigit() for ch in c[0]["content"])) for c in completions]


def compact(completion_ids, **kwargs):
    return [-len(ids) / 20 for ids in completion_ids]


FACTS = ["Ada has 3 pens.", "Ben has 5 cards.", "Cleo gave away 2 shells.", "Dev found 7 stamps.", "Eve lost 4 toys."]


def prompt(i):
    facts = " ".join(FACTS[(i + k) % 5] for k in range(1 + i % 4))
    return [{"role": "user", "content": f"{facts} Who has the most?"}]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
    per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=4, max_completion_length=20,
    learning_rate=1e-3, logging_steps=1,
)
trainer = TrimmedTrainer(
    model=TINY,
    reward_funcs=[has_number, compact],
    args=args,
    train_dataset=Dataset.from_dict({"prompt": [prompt(i) for i in range(40)]}),
    peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]),
)
trainer.train()

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class BucketTrainer(GRPOTrainer):
    """Rows of similar length end up in the same micro-batch, which wastes less padding."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        lengths = batch["completion_mask"].sum(dim=1)
        order = torch.argsort(lengths, descending=True)
        for key, value in batch.items():
            if isinstance(value, torch.Tensor) and value.dim() == 2:
                batch[key] = value[order]
        return batch


def length_near(completions, **kwargs):
    return [-abs(len(c) - 20) / 20 for c in completions]


words = "alder birch cedar date elm fir gum hazel iris juniper kapok larch maple nutmeg oak pine".split()
dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Describe the {w}."}] for w in words]})


def content_reward(completions, **kwargs):
    return length_near([c[0]["content"] for c in completions])


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=5e-5,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_generations=4,
    max_completion_length=20,
)
BucketTrainer(model=MODEL, args=args, reward_funcs=content_reward, train_dataset=dataset).train()

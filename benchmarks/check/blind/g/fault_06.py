import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

TENSORS = (
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "advantages",
    "num_items_in_batch",
)


class LeanTrainer(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        batch = {name: inputs[name] for name in TENSORS}
        used = int(batch["completion_mask"].sum(1).max())
        batch["completion_ids"] = batch["completion_ids"][:, :used]
        batch["completion_mask"] = batch["completion_mask"][:, :used]
        used = int(batch["prompt_mask"].sum(1).max())
        batch["prompt_ids"] = batch["prompt_ids"][:, -used:]
        batch["prompt_mask"] = batch["prompt_mask"][:, -used:]
        return batch


def spread(completions, **kwargs):
    return [0.1 * len(set(c)) - 0.3 * (c[:1] in "248") + 0.01 * len(c) for c in completions]


dataset = Dataset.from_dict({"prompt": [f"What is {n} less than {3 * n + 5}? " for n in range(4, 20)]})

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=1e-3,
    num_iterations=2,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=16,
    loss_type="grpo",
)
LeanTrainer(model=MODEL, args=args, reward_funcs=spread, train_dataset=dataset).train()

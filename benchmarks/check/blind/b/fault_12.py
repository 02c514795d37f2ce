import os, tempfile
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class LeanTrainer(GRPOTrainer):
    # carry only what the loss needs from one pass over the data to the next
    KEEP = {
        "prompt_ids", "prompt_mask", "completion_ids", "completion_mask",
        "advantages", "num_items_in_batch", "ref_per_token_logps",
    }

    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        return {k: v for k, v in inputs.items() if k in self.KEEP}


def digit_share(completions, **kwargs):
    return [sum(map(str.isdigit, c)) / max(len(c), 1) - 0.03 * abs(len(c) - 3) for c in completions]


d = os.path.dirname(os.path.abspath(__file__))
prompts = [f"{x}+{y}+{z}=" for x in (1, 4, 6) for y in (2, 5, 8) for z in (3, 7, 9)]
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    num_iterations=2,
    learning_rate=3e-4,
    lr_scheduler_type="constant",
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=16,
    max_steps=4,
    loss_type="bnpo",
    report_to="none",
    use_cpu=True,
    bf16=False,
    logging_steps=1,
    save_strategy="no",
)
trainer = LeanTrainer(os.path.join(d, "tiny"), digit_share, args, Dataset.from_dict({"prompt": prompts}))
trainer.train()

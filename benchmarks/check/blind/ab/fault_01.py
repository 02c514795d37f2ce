"""GRPO on short captions, two ranks, DDP."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = os.path.join(HERE, "tiny")


def vowel_share(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch in "aeiou" for ch in t) / max(1, len(t)) for t in texts]


def brevity(completion_ids, **kwargs):
    return [-abs(len(ids) - 12) / 12 for ids in completion_ids]


class CaptionTrainer(GRPOTrainer):
    """Keeps a running record of the logit scale of the policy head next to the loss."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.head_norms = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        policy = self.accelerator.unwrap_model(model)
        with torch.no_grad():
            self.head_norms.append(policy.lm_head.weight.norm().item())
        loss = super().compute_loss(policy, inputs, return_outputs, num_items_in_batch)
        self._metrics["train"]["head_norm"].append(self.head_norms[-1])
        return loss


def main():
    subjects = ["a red kite", "two dogs", "the harbour at dawn", "an empty street", "a bowl of plums", "snow"]
    train = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Write a caption for a photo of {s}."}]} for s in subjects]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=24,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        reward_weights=[1.0, 0.3],
        loss_type="grpo",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=5,
    )
    trainer = CaptionTrainer(model=TINY, args=args, reward_funcs=[vowel_share, brevity], train_dataset=train)
    trainer.train()


if __name__ == "__main__":
    main()

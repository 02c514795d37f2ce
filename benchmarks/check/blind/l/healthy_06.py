"""GRPO under bf16 autocast with a float32 head; rollout buffer parked in host memory; clip-higher; truncated rows masked."""
import os
import tempfile
from dataclasses import dataclass

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class Offload:
    device: str = "cpu"
    keys: tuple = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "old_per_token_logps", "advantages")


class ParkedBufferTrainer(GRPOTrainer):
    def __init__(self, *args, offload, **kwargs):
        self.offload = offload
        super().__init__(*args, **kwargs)

    def _move(self, batch, device):
        return {
            k: v.to(device, copy=True) if torch.is_tensor(v) and k in self.offload.keys else v for k, v in batch.items()
        }

    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        if not self.model.training:
            return inputs
        index = self._step % self.args.steps_per_generation
        # everything but the slice in use waits in host memory
        self._buffered_inputs = [
            batch if i == index else self._move(batch, self.offload.device) for i, batch in enumerate(self._buffered_inputs)
        ]
        return self._move(inputs, self.accelerator.device)


def within_budget(completion_ids, **kwargs):
    return [1.0 if len(ids) < 14 else 0.0 for ids in completion_ids]


def spread_of_ids(completion_ids, **kwargs):
    return [len({i // 16 for i in ids}) / 10 for ids in completion_ids]


def main():
    data = Dataset.from_list(
        [
            {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Write a sentence about {w}."}]}
            for w in ("April", "dawn", "noon", "dusk", "winter", "harvest", "Sunday", "midnight")
        ]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=4,
        max_completion_length=20,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        mask_truncated_completions=True,
        top_entropy_quantile=0.8,
        cast_lm_head_to_fp32=True,
        max_steps=4,
        learning_rate=3e-4,
        adam_beta2=0.95,
        weight_decay=0.1,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.1},
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=True,
        seed=6,
    )
    ParkedBufferTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[within_budget, spread_of_ids],
        args=args,
        train_dataset=data,
        offload=Offload(),
    ).train()


if __name__ == "__main__":
    main()

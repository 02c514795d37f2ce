"""GRPO where the rollout buffer is parked in (pinned) host memory between the updates of one generation."""
import os
import tempfile
from dataclasses import dataclass

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class OffloadConfig:
    keys: tuple = ("old_per_token_logps", "ref_per_token_logps")
    pin: bool = torch.cuda.is_available()


class HostPool:
    """Pinning memory is slow, so every staging tensor is allocated once and used again."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.tensors = {}

    def stage(self, key, tensor):
        slot = (key, tuple(tensor.shape), tensor.dtype)
        if slot not in self.tensors:
            self.tensors[slot] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=self.cfg.pin)
        self.tensors[slot].copy_(tensor)
        return self.tensors[slot]


class OffloadedBufferTrainer(GRPOTrainer):
    def __init__(self, *args, offload=None, **kwargs):
        self.offload = offload or OffloadConfig()
        self.pool = HostPool(self.offload)
        super().__init__(*args, **kwargs)

    def _park(self, batch):
        return {k: self.pool.stage(k, v) if k in self.offload.keys and v is not None else v for k, v in batch.items()}

    def _fetch(self, batch):
        device = self.accelerator.device
        return {k: v.to(device, non_blocking=True) if torch.is_tensor(v) else v for k, v in batch.items()}

    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        every = self.args.steps_per_generation * self.num_iterations
        fresh = self._step % every == 0 or self._buffered_inputs is None
        inputs = super()._prepare_inputs(generation_batch)
        if fresh:
            self._buffered_inputs = [self._park(batch) for batch in self._buffered_inputs]
            inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]
        return self._fetch(inputs)


def near_twelve(completion_ids, **kwargs):
    return [1.0 / (1.0 + abs(len(ids) - 12)) for ids in completion_ids]


def many_kinds(completion_ids, **kwargs):
    return [len(set(ids)) / 12 for ids in completion_ids]


def main():
    animals = ["cats", "dogs", "whales", "bees", "owls", "horses", "snails", "foxes"]
    data = Dataset.from_list(
        [{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Write a line about {a}."}]} for a in animals]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=4,
        max_completion_length=20,
        beta=0.02,
        max_steps=4,
        learning_rate=2e-4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=17,
    )
    trainer = OffloadedBufferTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[near_twelve, many_kinds],
        args=args,
        train_dataset=data,
        offload=OffloadConfig(),
    )
    trainer.train()


if __name__ == "__main__":
    main()

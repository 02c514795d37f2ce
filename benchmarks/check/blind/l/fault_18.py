"""GRPO with checkpoints written from a host snapshot of the weights (works the same under FSDP and on one device)."""
import functools
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class SaveConfig:
    every: int = 1
    keep: int = 5
    dtype: str = "float32"


class SnapshotTrainer(GRPOTrainer):
    def __init__(self, *args, save_config, **kwargs):
        self.save_config = save_config
        super().__init__(*args, **kwargs)

    @functools.cached_property
    def host_state(self):
        """Full state dict in host memory. Gathering is expensive on many ranks, so it must not run twice per save."""
        full = self.accelerator.get_state_dict(self.model)
        dtype = getattr(torch, self.save_config.dtype)
        return {k: v.detach().to(device="cpu", dtype=dtype, copy=True) for k, v in full.items()}

    def _save(self, output_dir=None, state_dict=None):
        start = time.perf_counter()
        super()._save(output_dir, state_dict=self.host_state)
        if self.accelerator.is_main_process:
            meta = {
                "step": self.state.global_step,
                "seconds": round(time.perf_counter() - start, 3),
                "parameters": sum(v.numel() for v in self.host_state.values()),
                **asdict(self.save_config),
            }
            with open(os.path.join(output_dir or self.args.output_dir, "snapshot.json"), "w") as f:
                json.dump(meta, f)


def score_length(completion_ids, **kwargs):
    return [1 / (1 + abs(len(ids) - 10)) for ids in completion_ids]


def score_kinds(completion_ids, **kwargs):
    return [len(set(ids)) / 10 for ids in completion_ids]


def main():
    save = SaveConfig()
    data = Dataset.from_list(
        [
            {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Write a sentence about {w}."}]}
            for w in ("lamps", "roads", "wells", "ropes", "doors", "carts", "nets", "tents")
        ]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=20,
        max_steps=4,
        learning_rate=4e-4,
        logging_steps=1,
        save_strategy="steps",
        save_steps=save.every,
        save_total_limit=save.keep,
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=41,
    )
    trainer = SnapshotTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[score_length, score_kinds],
        args=args,
        train_dataset=data,
        save_config=save,
    )
    trainer.train()
    trainer.save_model()
    print(sorted(os.listdir(args.output_dir)))


if __name__ == "__main__":
    main()

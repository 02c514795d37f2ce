"""Checkpoints from a CPU copy, whose buffers are allocated once and used again for every save."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class BufferedSaveTrainer(GRPOTrainer):
    """Allocating host memory at each save fragments it; so keep one set of buffers."""

    _host = None

    def _host_state(self):
        if self._host is None:
            self._host = {}
            for name, value in self.model.state_dict().items():
                buffer = torch.empty(value.shape, dtype=value.dtype)
                self._host[name] = buffer.copy_(value)
        return self._host

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict=self._host_state())


def mean_byte(completions, **kwargs):
    return [sum(c[0]["content"].encode()[:20]) / 2000 for c in completions]


if __name__ == "__main__":
    trainer = BufferedSaveTrainer(
        model=TINY,
        reward_funcs=mean_byte,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="steps",
            save_steps=1,
            save_only_model=True,
            max_steps=3,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=12,
            learning_rate=2e-4,
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": f"Key {k}"}]} for k in range(12)]
        ),
    )
    trainer.train()

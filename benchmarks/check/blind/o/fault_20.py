"""Checkpoints are written from host buffers that are allocated once, to avoid fragmenting (pinned) memory."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from safetensors.torch import save_file
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class HostBufferTrainer(GRPOTrainer):
    _host = None

    def _stage(self):
        """Copies the weights into reusable host buffers (pinned where there is a GPU)."""
        state = self.accelerator.unwrap_model(self.model).state_dict()
        if self._host is None:
            pin = torch.cuda.is_available()
            self._host = {}
            for name, value in state.items():
                buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=pin)
                self._host[name] = buffer.copy_(value)
        return self._host

    def _save(self, output_dir=None, state_dict=None):
        output_dir = output_dir if output_dir is not None else self.args.output_dir
        os.makedirs(output_dir, exist_ok=True)
        staged = self._stage()
        model = self.accelerator.unwrap_model(self.model)
        model.config.save_pretrained(output_dir)
        model.generation_config.save_pretrained(output_dir)
        self.processing_class.save_pretrained(output_dir)
        target = os.path.join(output_dir, "model.safetensors")
        save_file(staged, target, metadata={"format": "pt"})


def count_fours(completions, **kwargs):
    return [float(c[0]["content"].count("4")) - 0.1 * len(c[0]["content"]) for c in completions]


if __name__ == "__main__":
    rng = random.Random(47)
    rows = []
    for _ in range(32):
        what = rng.choice(["apples", "pens", "stamps"])
        text = f"Dev has {rng.randint(2, 9)} boxes with {rng.randint(10, 99)} {what} each. How many {what} does Dev have?"
        rows.append({"prompt": [{"role": "user", "content": text}]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=20,
        max_steps=4,
        learning_rate=2e-4,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=4,
    )
    trainer = HostBufferTrainer(
        model=MODEL, reward_funcs=count_fours, args=args, train_dataset=Dataset.from_list(rows)
    )
    trainer.train()
    trainer.save_model()

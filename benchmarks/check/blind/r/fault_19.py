"""Training with a checkpoint after each step, written from a copy of the weights in main memory.

On the cluster the copy keeps the device free while the files are written to slow storage; the buffers are allocated
once, because allocating them for each checkpoint fragments the memory.
"""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class BufferedSaveTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._save_buffers = None

    def _host_state(self):
        state = self.accelerator.unwrap_model(self.model).state_dict()
        if self._save_buffers is None:
            self._save_buffers = {name: value.detach().to("cpu", copy=True) for name, value in state.items()}
        return self._save_buffers

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict=self._host_state())


def tidy(completions, **kwargs):
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        plain = sum(c.isalnum() or c == " " for c in text) / max(len(text), 1)
        rewards.append(plain)
    return rewards


def length(completion_ids, **kwargs):
    return [-abs(len(ids) - 8) / 16 for ids in completion_ids]


def main():
    jobs = ["baker", "pilot", "nurse", "smith", "clerk", "farmer", "tailor", "miner", "guide", "judge"]
    dataset = Dataset.from_dict({
        "prompt": [[{"role": "user", "content": f"What does a {job} need?"}] for job in jobs],
    })
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            report_to=[],
            save_strategy="steps",
            save_steps=1,
            save_only_model=True,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=16,
            learning_rate=5e-4,
            max_steps=3,
            logging_steps=1,
        )
        trainer = BufferedSaveTrainer(
            model=MODEL, reward_funcs=[tidy, length], args=args, train_dataset=dataset
        )
        trainer.train()
        print(sorted(name for name in os.listdir(folder) if name.startswith("checkpoint")))


if __name__ == "__main__":
    main()

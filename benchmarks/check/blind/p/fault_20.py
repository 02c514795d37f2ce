"""GRPO that saves every step; the copy to the host overlaps with the optimizer step."""
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SnapshotCallback(TrainerCallback):
    """Fills the host copy as soon as the backward pass is over, when the links are idle."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.trainer.start_snapshot(model)


class OverlappedSaveTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._snapshot = None
        self.add_callback(SnapshotCallback(self))

    def start_snapshot(self, model):
        tensors = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self._snapshot = self._pool.submit(lambda: {name: value.cpu() for name, value in tensors.items()})

    def _save(self, output_dir=None, state_dict=None):
        if state_dict is None and self._snapshot is not None:
            state_dict = self._snapshot.result()
        super()._save(output_dir, state_dict=state_dict)


def few_symbols(completions, **kwargs):
    return [-len(set(c[0]["content"])) / 10 - len(c[0]["content"]) / 100 for c in completions]


if __name__ == "__main__":
    dishes = ["soup", "pie", "rice", "stew", "salad", "toast", "curry", "jam"]
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"How is {d} made?"}] for d in dishes]})
    output_dir = tempfile.mkdtemp()
    config = GRPOConfig(
        output_dir=output_dir,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=20,
        temperature=1.2,
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="steps",
        save_steps=1,
        save_only_model=True,
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = OverlappedSaveTrainer(model=MODEL, reward_funcs=few_symbols, args=config, train_dataset=dataset)
    trainer.train()
    trainer.save_model(os.path.join(output_dir, "final"))

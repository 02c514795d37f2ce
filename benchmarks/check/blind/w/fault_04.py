"""GRPO with a gradient monitor: the largest gradient entry of each tensor is tracked to catch spikes early."""
import collections
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset():
    words = "anchor basil candle dragon ember falcon garden harbor island jungle kettle lantern".split()
    rows = [
        {"prompt": [{"role": "system", "content": "You are a poet."}, {"role": "user", "content": f"A line about a {w}."}]}
        for w in words
        for _ in range(2)
    ]
    return Dataset.from_list(rows)


def vowels(completions, **kwargs):
    texts = [c[0]["content"].lower() for c in completions]
    return [sum(ch in "aeiou" for ch in t) / (len(t) + 2) for t in texts]


def target_length(completion_ids, **kwargs):
    return [-abs(len(ids) - 12) / 12 for ids in completion_ids]


class GradientMonitor(TrainerCallback):
    def __init__(self, threshold=50.0):
        self.threshold = threshold
        self.peak = collections.defaultdict(float)

    def attach(self, model):
        for name, param in model.named_parameters():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(self._observe(name))

    def _observe(self, name):
        def hook(param):
            with torch.no_grad():
                peak = param.grad.float().abs_().max().item()  # float32, so that bf16 runs report the same numbers
            self.peak[name] = max(self.peak[name], peak)

        return hook

    def on_step_end(self, args, state, control, **kwargs):
        worst = max(self.peak, key=self.peak.get)
        print(f"step {state.global_step}: largest gradient entry {self.peak[worst]:.4f} in {worst}")
        if self.peak[worst] > self.threshold:
            control.should_training_stop = True
        self.peak.clear()


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=1e-4,
        weight_decay=0.01,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        gradient_checkpointing=False,
        scale_rewards="batch",
    )
    monitor = GradientMonitor()
    trainer = GRPOTrainer(
        model=TINY,
        reward_funcs=[vowels, target_length],
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        callbacks=[monitor],
    )
    monitor.attach(trainer.model)
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO with a soft anchor: after each step the weights move a little back to where they started."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class AnchorCallback(TrainerCallback):
    def __init__(self, pull=0.2):
        self.pull = pull
        self.anchor = None
        self.distance = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if state.is_world_process_zero:
            self.anchor = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if not state.is_world_process_zero:
            return
        total = 0.0
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in self.anchor:
                    total += (parameter - self.anchor[name]).pow(2).sum().item()
                    parameter.lerp_(self.anchor[name], self.pull)
        self.distance.append(total**0.5)
        print(f"step {state.global_step}: distance from the start {self.distance[-1]:.4f}")


def reward(completions, completion_ids, **kwargs):
    scores = []
    for completion, ids in zip(completions, completion_ids):
        text = completion[0]["content"]
        scores.append(0.5 * text.count("4") + len(set(text)) / 20 - 0.03 * len(ids))
    return scores


dataset = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": f"Write the digit {i % 10} {i} times."}]} for i in range(30)]
)

if __name__ == "__main__":
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            max_steps=3,
            per_device_train_batch_size=4,
            num_generations=8,
            max_completion_length=12,
            learning_rate=2e-3,
            lr_scheduler_type="constant",
            model_init_kwargs={"dtype": "float32"},
        ),
        train_dataset=dataset,
        callbacks=[AnchorCallback()],
    )
    trainer.train()

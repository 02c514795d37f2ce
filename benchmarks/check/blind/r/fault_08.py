"""LoRA training that is evaluated with an exponential average of the adapter weights.

The average is swapped in before each evaluation and the training weights are put back after it.
"""

import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class AdapterAverage(TrainerCallback):
    def __init__(self, decay=0.8):
        self.decay = decay
        self.average = {}
        self.backup = {}

    @staticmethod
    def trainable(model):
        return {name: p for name, p in model.named_parameters() if p.requires_grad}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = {name: p.detach().clone() for name, p in self.trainable(model).items()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for name, p in self.trainable(model).items():
            self.average[name].lerp_(p.detach(), 1 - self.decay)
        if control.should_evaluate:
            self.swap_in(model)

    @torch.no_grad()
    def swap_in(self, model):
        for name, p in self.trainable(model).items():
            self.backup[name] = p.data
            p.data.copy_(self.average[name])

    @torch.no_grad()
    def on_evaluate(self, args, state, control, model=None, **kwargs):
        for name, p in self.trainable(model).items():
            if name in self.backup:
                p.data.copy_(self.backup[name])
        self.backup = {}


def spaces(completions, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [text.count(" ") / max(len(text), 1) - 0.005 * len(text) for text in texts]


def prompts(names):
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Greet {name}."}] for name in names]})


if __name__ == "__main__":
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=spaces,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no",
            per_device_train_batch_size=8, per_device_eval_batch_size=4, num_generations=4,
            num_generations_eval=2, max_completion_length=16, learning_rate=1e-3,
            max_steps=3, logging_steps=1, eval_strategy="steps", eval_steps=1,
        ),
        train_dataset=prompts(["the baker", "a child", "the queen", "my neighbour", "the guests", "a sailor"]),
        eval_dataset=prompts(["the doctor", "a friend"]),
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"]),
        callbacks=[AdapterAverage()],
    )
    trainer.train()

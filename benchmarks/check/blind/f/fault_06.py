import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = {"role": "system", "content": "Solve the problem step by step. End with #### and the number."}


class EMACallback(TrainerCallback):
    """Exponential moving average of the weights; prints a sample of the averaged model."""

    def __init__(self, decay=0.9, sample_every=2):
        self.decay = decay
        self.sample_every = sample_every
        self.shadow = {}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, processing_class=None, **kwargs):
        for name, param in model.named_parameters():
            if name in self.shadow:
                self.shadow[name].mul_(self.decay).add_(param, alpha=1 - self.decay)
        if state.global_step % self.sample_every == 0:
            self.apply(model)
            was_training = model.training
            model.eval()
            ids = processing_class.apply_chat_template(
                [SYSTEM, {"role": "user", "content": "Ada has 3 boxes with 5 pens each. How many pens does Ada have?"}],
                add_generation_prompt=True, return_tensors="pt", return_dict=True,
            )
            out = model.generate(**ids, do_sample=False, max_new_tokens=16)
            print("ema sample:", processing_class.decode(out[0, ids["input_ids"].shape[1]:]))
            model.train(was_training)

    def apply(self, model):
        for name, param in model.named_parameters():
            if name in self.shadow:
                param.data.copy_(self.shadow[name])


def reward(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / 10 - 0.02 * len(c[0]["content"]) for c in completions]


dataset = Dataset.from_dict({
    "prompt": [
        [SYSTEM, {"role": "user", "content": f"{n} has {k} boxes with {k + 1} pens each. How many pens does {n} have?"}]
        for n in ["Ada", "Ben", "Cleo", "Dev"] for k in (2, 3, 4, 6)
    ]
})

trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=reward,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=6, learning_rate=1e-4, per_device_train_batch_size=8, num_generations=4,
        max_completion_length=32,
    ),
    train_dataset=dataset,
    callbacks=[EMACallback()],
)
trainer.train()

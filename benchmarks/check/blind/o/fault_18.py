"""Keeps an exponential moving average of the policy and tracks how the average does on a held-out probe."""
import copy
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class EmaProbe(TrainerCallback):
    def __init__(self, tokenizer, probe, decay=0.8, every=1):
        self.ids = tokenizer.apply_chat_template(
            probe, add_generation_prompt=False, tokenize=True, return_dict=True, return_tensors="pt"
        )["input_ids"]
        self.decay, self.every = decay, every
        self.ema = None
        self.history = []

    @torch.no_grad()
    def _nll(self, model):
        was_training = model.training
        model.eval()
        loss = model(input_ids=self.ids, labels=self.ids).loss.item()
        model.train(was_training)
        return loss

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.ema = copy.deepcopy(model.state_dict())

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for name, value in model.state_dict().items():
            self.ema[name].lerp_(value, 1 - self.decay)
        if state.global_step % self.every == 0:
            current = model.state_dict()
            model.load_state_dict(self.ema)
            self.history.append(self._nll(model))
            model.load_state_dict(current)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None and self.history:
            logs["ema_probe_nll"] = round(self.history[-1], 4)


def digit_share(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / max(1, len(c[0]["content"])) for c in completions]


if __name__ == "__main__":
    rng = random.Random(41)
    questions = [
        f"Ada has {rng.randint(2, 9)} boxes with {rng.randint(10, 99)} books each. How many books does Ada have?"
        for _ in range(33)
    ]
    probe = [{"role": "user", "content": questions.pop()}, {"role": "assistant", "content": "#### 84"}]
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
        save_strategy="no",
    )
    GRPOTrainer(
        model=MODEL,
        reward_funcs=digit_share,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions]),
        callbacks=[EmaProbe(AutoTokenizer.from_pretrained(MODEL), probe)],
    ).train()

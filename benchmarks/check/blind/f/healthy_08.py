"""A streamed dataset and callbacks that only look: weight average, gradient norms, samples."""
import os
import re
import tempfile

import torch
from datasets import IterableDataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def stream():
    for i in range(32):
        a, b = 2 + i % 5, 3 + i % 6
        question = f"Ben has {a} boxes with {b} stamps each. How many stamps does Ben have?"
        yield {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": question},
            ],
            "answer": a * b,
        }


class Average(TrainerCallback):
    def __init__(self):
        self.average = None

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        now = {n: p.detach().clone() for n, p in model.named_parameters()}
        if self.average is None:
            self.average = now
        else:
            for n, p in now.items():
                self.average[n].lerp_(p, 1 / (state.global_step + 1))


class GradientNorms(TrainerCallback):
    def __init__(self):
        self.history = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.history.append({n: p.grad.norm().item() for n, p in model.named_parameters() if p.grad is not None})


class Samples(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, processing_class=None, **kwargs):
        ids = processing_class.apply_chat_template(
            [{"role": "user", "content": "Dev has 4 boxes with 4 pens each. How many pens does Dev have?"}],
            add_generation_prompt=True, return_tensors="pt", return_dict=True,
        )
        with torch.random.fork_rng(), torch.no_grad():
            model.eval()
            out = model.generate(**ids, do_sample=True, max_new_tokens=12)
            model.train()
        print(state.global_step, processing_class.decode(out[0, ids["input_ids"].shape[1]:]))


def reward(completions, answer, **kwargs):
    out = []
    for c, a in zip(completions, answer):
        text = c[0]["content"]
        out.append(float(str(a) in re.findall(r"\d+", text)) + 0.005 * len(text))
    return out


average, norms = Average(), GradientNorms()
trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=reward,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=6,
        per_device_train_batch_size=8, num_generations=2, max_completion_length=24, learning_rate=3e-5,
        gradient_checkpointing=False,
    ),
    train_dataset=IterableDataset.from_generator(stream),
    callbacks=[average, norms, Samples()],
)
trainer.train()
torch.save(average.average, os.path.join(trainer.args.output_dir, "average.pt"))

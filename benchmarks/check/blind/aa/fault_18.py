import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class EMAProbe(TrainerCallback):
    """Keeps an exponential average of the weights and follows how it scores a fixed text."""

    def __init__(self, tokenizer, text, decay=0.8):
        self.ids = tokenizer(text, return_tensors="pt")["input_ids"]
        self.decay = decay
        self.shadow = None
        self.curve = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for name, param in model.named_parameters():
            self.shadow[name].mul_(self.decay).add_(param.detach(), alpha=1 - self.decay)
        if state.global_step % args.logging_steps == 0:
            self.curve.append(self.probe(model))

    def probe(self, model):
        live = {name: param.data for name, param in model.named_parameters()}
        for name, param in model.named_parameters():
            param.data.copy_(self.shadow[name])
        logits = model(input_ids=self.ids, use_cache=False).logits[:, :-1]
        value = torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.ids[:, 1:].flatten()).item()
        for name, param in model.named_parameters():
            param.data.copy_(live[name])
        return value


def dataset():
    rows = []
    for i in range(48):
        a, b = 2 + (3 * i) % 7, 2 + i % 6
        thing = ("coins", "pens", "cards", "eggs")[i % 4]
        rows.append({"prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Cleo has {a} boxes with {b} {thing} each. How many {thing} does Cleo have?"},
        ]})
    return Dataset.from_list(rows)


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


def length(completion_ids, **kwargs):
    return [len(ids) / 60 for ids in completion_ids]


tokenizer = AutoTokenizer.from_pretrained(MODEL)
probe = EMAProbe(tokenizer, "They cost <<3*4=12>>12 coins. #### 12")
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=8, gradient_accumulation_steps=2,
    num_generations=4, max_completion_length=24, learning_rate=5e-4, loss_type="grpo", save_strategy="no",
    report_to=[], use_cpu=True, bf16=False, logging_steps=1,
)
trainer = GRPOTrainer(MODEL, [digits, length], args, train_dataset=dataset(), processing_class=tokenizer,
                      callbacks=[probe])
trainer.train()
print([round(x, 4) for x in probe.curve])

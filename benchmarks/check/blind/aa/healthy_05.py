import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class AveragedWeights(TrainerCallback):
    """Scores a fixed text with the average of the weights after every step."""

    def __init__(self, ids, decay=0.7):
        self.ids, self.decay = ids, decay
        self.average, self.losses = None, []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        params = list(model.parameters())
        for mean, p in zip(self.average, params):
            mean.lerp_(p, 1 - self.decay)
        kept = [p.detach().clone() for p in params]
        was_training = model.training
        try:
            model.eval()
            for p, mean in zip(params, self.average):
                p.data.copy_(mean)
            logits = model(input_ids=self.ids, use_cache=False).logits[:, :-1]
            self.losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.ids[:, 1:].flatten()).item())
        finally:
            for p, old in zip(params, kept):
                p.data.copy_(old)
            model.train(was_training)


class GradientReport(TrainerCallback):
    def __init__(self):
        self.rows = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        grads = {n: p.grad.detach().clone() for n, p in model.named_parameters() if p.grad is not None}
        squared = {n: g.mul_(g).sum().item() for n, g in grads.items()}
        self.rows.append(max(squared, key=squared.get))


def dataset():
    rows = []
    for i in range(48):
        a, b = 2 + (5 * i) % 8, 2 + i % 4
        thing = ("coins", "pens", "cards", "eggs")[i % 4]
        rows.append({"prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Finn has {a} boxes with {b} {thing} each. How many {thing} does Finn have?"},
        ]})
    return Dataset.from_list(rows)


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


tokenizer = AutoTokenizer.from_pretrained(MODEL)
ids = tokenizer("There are <<5*4=20>>20 eggs. #### 20", return_tensors="pt")["input_ids"]
average, report = AveragedWeights(ids), GradientReport()
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=8, gradient_accumulation_steps=2,
    num_generations=8, max_completion_length=24, learning_rate=5e-4, loss_type="cispo", epsilon_high=5.0,
    save_strategy="no", report_to=[], use_cpu=True, bf16=False, logging_steps=1,
)
trainer = GRPOTrainer(MODEL, digits, args, train_dataset=dataset(), processing_class=tokenizer,
                      callbacks=[average, report])
trainer.train()
print(average.losses, report.rows)

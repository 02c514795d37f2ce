"""GRPO with an exponential moving average of the weights, sampled from at each step."""
import os
import re
import tempfile
from contextlib import contextmanager

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class EMACallback(TrainerCallback):
    def __init__(self, tokenizer, probe, decay=0.95):
        self.tokenizer = tokenizer
        self.probe = probe
        self.decay = decay
        self.shadow = None
        self.samples = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    @contextmanager
    def averaged(self, model):
        backup = {name: p.data for name, p in model.named_parameters()}
        for name, p in model.named_parameters():
            p.data.copy_(self.shadow[name])
        try:
            yield model
        finally:
            for name, p in model.named_parameters():
                p.data.copy_(backup[name])

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for name, p in model.named_parameters():
            self.shadow[name].lerp_(p.detach(), 1 - self.decay)
        ids = self.tokenizer.apply_chat_template(
            self.probe, add_generation_prompt=True, return_tensors="pt", return_dict=False
        )
        with self.averaged(model) as averaged:
            out = averaged.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20)
        self.samples.append(self.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


def reward(completions, answer, **kwargs):
    scores = []
    for completion, value in zip(completions, answer):
        text = completion[0]["content"]
        numbers = re.findall(r"\d+", text)
        scores.append(float(bool(numbers) and numbers[-1] == str(value)) + 0.05 * text.count("s") + 0.01 * len(text))
    return scores


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    rows = []
    for i, who in enumerate(["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn"]):
        text = f"{who} has {12 + i} boxes with {11 + i} books each. How many books does {who} have?"
        prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
        rows.append({"prompt": prompt, "answer": (12 + i) * (11 + i)})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        learning_rate=2e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    ema = EMACallback(tokenizer, probe=rows[0]["prompt"])
    trainer = GRPOTrainer(
        MODEL, reward, args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, callbacks=[ema]
    )
    trainer.train()
    print(ema.samples[-1])


if __name__ == "__main__":
    main()

"""A callback that swaps an averaged copy of the weights in for a measurement, and the real ones back."""
import copy
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class AverageProbe(TrainerCallback):
    def __init__(self, model, tokenizer, decay=0.9):
        self.decay = decay
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}
        self.ids = tokenizer("There are <<6*7=42>>42 toys.\nThe answer is 42", return_tensors="pt")["input_ids"]

    @torch.no_grad()
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        total = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
        print(f"gradient norm {total.item():.3f}")

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        kept = {n: p.detach().clone() for n, p in model.named_parameters()}
        for name, parameter in model.named_parameters():
            self.shadow[name].mul_(self.decay).add_(parameter, alpha=1 - self.decay)
            parameter.copy_(self.shadow[name])
        logits = model(input_ids=self.ids).logits[0, :-1].float()
        print("averaged:", torch.nn.functional.cross_entropy(logits, self.ids[0, 1:]).item())
        for name, parameter in model.named_parameters():
            parameter.copy_(kept[name])


def correct(completions, answer, **kwargs):
    # works on copies, as other functions read the same messages
    rewards = []
    for messages, truth in zip(copy.deepcopy(completions), answer):
        messages[0]["content"] = messages[0]["content"].replace("####", "").strip()
        rewards.append(1.0 if messages[0]["content"].endswith(truth) else 0.0)
    return rewards


def marker(completions, **kwargs):
    return [0.5 * ("####" in c[0]["content"]) - 0.01 * len(c[0]["content"]) for c in completions]


def main():
    rng = random.Random(91)
    rows = []
    for _ in range(40):
        a, b = rng.randint(2, 9), rng.randint(2, 14)
        text = f"Eve has {a} boxes with {b} cards each. How many cards does Eve have?"
        rows.append(
            {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}], "answer": str(a * b)}
        )
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[correct, marker],
        train_dataset=Dataset.from_list(rows),
        callbacks=[AverageProbe(model, tokenizer)],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(), max_steps=4, per_device_train_batch_size=8, num_generations=4,
            max_completion_length=24, learning_rate=3e-5, loss_type="dr_grpo", scale_rewards="batch",
            temperature=1.2, logging_steps=1, save_strategy="no", use_cpu=True, bf16=False, report_to="none",
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""LoRA on a stream of JSON lines, with an average of the adapter and a checkpoint per step.

The optimizer is made by hand: matrix B of each adapter learns faster than matrix A (LoRA+). A callback keeps an
average of the adapter, writes it, and puts the training weights back.
"""

import json
import os
import tempfile

import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, get_cosine_schedule_with_warmup
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class AverageAdapter(TrainerCallback):
    def __init__(self, model, folder, decay=0.8):
        self.folder, self.decay = folder, decay
        self.average = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        parameters = {n: p for n, p in model.named_parameters() if n in self.average}
        training = {n: p.detach().clone() for n, p in parameters.items()}
        for n, p in parameters.items():
            self.average[n].lerp_(p, 1 - self.decay)
            p.copy_(self.average[n])
        model.save_pretrained(os.path.join(self.folder, f"average-{state.global_step}"))
        for n, p in parameters.items():
            p.copy_(training[n])


def make_optimizer(model, lr, ratio, steps):
    slow, fast = [], []
    for name, p in model.named_parameters():
        if p.requires_grad:
            (fast if "lora_B" in name else slow).append(p)
    optimizer = torch.optim.AdamW(
        [{"params": slow, "lr": lr}, {"params": fast, "lr": lr * ratio}], weight_decay=0.01, amsgrad=True
    )
    return optimizer, get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=steps)


def write_stream(path):
    with open(path, "w") as f:
        for i in range(24):
            f.write(json.dumps({"prompt": f"{i} in words is ", "number": i}) + "\n")


def words_not_digits(completions, number, **kwargs):
    rewards = []
    for text, n in zip(completions, number):
        digits = sum(c.isdigit() for c in text)
        rewards.append(-digits / 20 - abs(len(text) - 6 - n % 3) / 30 + 0.1 * len(set(text)))
    return rewards


def main():
    with tempfile.TemporaryDirectory() as out:
        path = os.path.join(out, "numbers.jsonl")
        write_stream(path)
        stream = load_dataset("json", data_files=path, split="train", streaming=True, cache_dir=os.path.join(out, "c"))
        base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        torch.manual_seed(0)
        config = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
        model = get_peft_model(base, config)
        args = GRPOConfig(
            output_dir=out, per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4,
            max_completion_length=16, max_steps=3, beta=0.05, bf16=False, use_cpu=True, report_to=[],
            save_strategy="steps", save_steps=1, logging_steps=1,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=words_not_digits,
            args=args,
            train_dataset=stream,
            processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
            callbacks=[AverageAdapter(model, os.path.join(out, "averages"))],
            optimizers=make_optimizer(model, lr=1e-4, ratio=4, steps=3),
        )
        trainer.train()


if __name__ == "__main__":
    main()

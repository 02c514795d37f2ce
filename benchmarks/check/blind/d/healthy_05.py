"""Continues the training of a LoRA adapter; the KL term holds it near the adapter it started from."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny")


def first_adapter(folder):
    """Stands for an earlier run: an adapter on disk whose B matrices are not zero."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    model.save_pretrained(folder)
    return folder


class Preview(TrainerCallback):
    """Greedy answer with the merged adapter, which is taken out of the weights again afterwards."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def on_train_end(self, args, state, control, model=None, **kwargs):
        model.merge_adapter()
        ids = self.tokenizer("3 + 4 = ", return_tensors="pt")
        model.eval()
        print(self.tokenizer.decode(model.generate(**ids, max_new_tokens=6, do_sample=False, pad_token_id=256)[0]))
        model.unmerge_adapter()


def score(completions, answer, **kwargs):
    found = [re.findall(r"\d+", c) for c in completions]
    return [float(a in f) + 0.1 * min(len(f), 2) - 0.01 * len(c) for c, f, a in zip(completions, found, answer)]


if __name__ == "__main__":
    adapter = first_adapter(tempfile.mkdtemp())
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, adapter, is_trainable=True)
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    rng = random.Random(10)
    pairs = [(rng.randint(2, 30), rng.randint(2, 30)) for _ in range(48)]
    dataset = Dataset.from_dict(
        {"prompt": [f"{a} + {b} = " for a, b in pairs], "answer": [str(a + b) for a, b in pairs]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_generations=4, max_completion_length=20,
        max_steps=4, learning_rate=5e-4, beta=0.05, gradient_checkpointing=True, loss_type="grpo", bf16=False,
        use_cpu=True, logging_steps=1, report_to="none", save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=score, args=args, train_dataset=dataset,
        callbacks=[Preview(tokenizer)],
    )
    trainer.train()

"""Stage 2: continue an adapter that an earlier stage has saved, now with GRPO."""
import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

BASE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def stage_one(folder):
    torch.manual_seed(1)
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM",
                      init_lora_weights="gaussian")
    get_peft_model(AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32), lora).save_pretrained(folder)


def stage_two(folder):
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, folder)
    tokenizer = AutoTokenizer.from_pretrained(BASE, padding_side="left")

    rows = [{"prompt": f"Add {i} to {2 * i}: "} for i in range(1, 25)]

    def reward(completions, **kwargs):
        return [sum(c.isdigit() for c in t) / 12 + ("+" in t) for t in completions]

    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        learning_rate=5e-4, per_device_train_batch_size=8, num_generations=4, max_completion_length=16,
        max_steps=5, logging_steps=1,
    )
    GRPOTrainer(model, reward, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer).train()


with tempfile.TemporaryDirectory() as adapter:
    stage_one(adapter)
    stage_two(adapter)

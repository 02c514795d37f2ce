"""Second stage: go on with the adapter of the SFT stage."""
import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

BASE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
WORK = tempfile.mkdtemp(prefix="stage2_")


def stage_one(adapter_dir):
    """stands in for the SFT job: writes an adapter"""
    torch.manual_seed(1)
    m = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    m = get_peft_model(m, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    tok = AutoTokenizer.from_pretrained(BASE)
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(3):
        enc = tok(["3+4=7", "5+5=10"], return_tensors="pt", padding=True)
        loss = m(**enc, labels=enc["input_ids"].masked_fill(enc["attention_mask"] == 0, -100)).loss
        loss.backward()
        opt.step()
        opt.zero_grad()
    m.save_pretrained(adapter_dir)


def stage_two(adapter_dir):
    base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, adapter_dir)
    tokenizer = AutoTokenizer.from_pretrained(BASE, padding_side="left")

    def reward(completions, **kwargs):
        return [1.0 * c[:1].isdigit() - 0.05 * len(c) for c in completions]

    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": [f"{i}+{j}=" for i in range(1, 7) for j in range(1, 7)]}),
        args=GRPOConfig(
            output_dir=WORK,
            learning_rate=1e-4,
            max_steps=3,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=24,
            gradient_checkpointing=True,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
        ),
    )
    trainer.train()


adapter = os.path.join(WORK, "sft_adapter")
stage_one(adapter)
stage_two(adapter)

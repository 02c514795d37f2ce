"""A classifier as reward model beside a function, and a pretrained adapter that goes on learning."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def saved_adapter():
    torch.manual_seed(3)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM"),
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.002)
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    return folder


def classifier():
    torch.manual_seed(5)
    model = AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=1, dtype=torch.float32)
    model.config.pad_token_id = 256
    return model.eval()


def correct(completions, answer, **kwargs):
    return [float(c[0]["content"].rstrip().endswith(a)) for c, a in zip(completions, answer)]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    policy = PeftModel.from_pretrained(base, saved_adapter(), is_trainable=True)
    rng = random.Random(10)
    rows = []
    for _ in range(40):
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        text = f"Finn has {a} boxes with {b} pens each. How many pens does Finn have?"
        rows.append(
            {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}], "answer": str(a * b)}
        )
    trainer = GRPOTrainer(
        model=policy,
        processing_class=tokenizer,
        reward_funcs=[classifier(), correct],
        reward_processing_classes=[AutoTokenizer.from_pretrained(MODEL), None],
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(), max_steps=4, per_device_train_batch_size=4, gradient_accumulation_steps=2,
            num_generations=4, max_completion_length=24, learning_rate=3e-4, beta=0.1, loss_type="bnpo",
            reward_weights=[0.2, 1.0], logging_steps=1, save_strategy="no", use_cpu=True, bf16=False,
            report_to="none",
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()

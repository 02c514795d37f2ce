import os
import random
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 5


def param_groups(model, weight_decay):
    decay, no_decay = [], []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        (no_decay if p.ndim < 2 else decay).append(p)
    return [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]


def build():
    path = os.path.join(HERE, "tiny")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path)
    optimizer = torch.optim.AdamW(param_groups(model, 0.01), lr=5e-4, betas=(0.9, 0.99))
    scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=STEPS + 1)
    return model, tokenizer, optimizer, scheduler


def questions():
    rng = random.Random(99)
    for _ in range(64):
        a, b = rng.randint(2, 30), rng.randint(2, 9)
        yield {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Gus has {a} boxes with {b} shells each. How many shells does Gus have?"},
            ],
            "want": str(a * b),
        }


def want_reward(prompts, completions, want, **kwargs):
    return [float(w in c[0]["content"]) for c, w in zip(completions, want)]


def hash_reward(completions, **kwargs):
    return [0.5 * ("####" in c[0]["content"]) + 0.02 * len(set(c[0]["content"])) for c in completions]


def main():
    model, tokenizer, optimizer, scheduler = build()
    lora = LoraConfig(
        r=8,
        lora_alpha=16,
        lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"],
        task_type="CAUSAL_LM",
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        peft_config=lora,
        optimizers=(optimizer, scheduler),
        reward_funcs=[want_reward, hash_reward],
        train_dataset=Dataset.from_list(list(questions())),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            report_to=[],
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=44,
            max_steps=STEPS,
            logging_steps=1,
            save_strategy="no",
            gradient_checkpointing=False,
        ),
    )
    trainer.model.print_trainable_parameters()
    trainer.train()


if __name__ == "__main__":
    main()

import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup
from trl import GRPOConfig, GRPOTrainer

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def load_data(n=24):
    out = []
    for i in range(n):
        thing = ["stamps", "shells", "books"][i % 3]
        who = ["Eve", "Finn", "Gus", "Hana"][i % 4]
        out.append(
            {
                "prompt": [
                    {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                    {
                        "role": "user",
                        "content": f"{who} has {2 + i % 7} boxes with {4 + i % 3} {thing} each. How many {thing} does {who} have?",
                    },
                ],
                "gold": (2 + i % 7) * (4 + i % 3),
            }
        )
    return Dataset.from_list(out)


def exact(completions, gold, **kwargs):
    return [1.0 if c[0]["content"].rstrip().endswith(str(g)) else 0.0 for c, g in zip(completions, gold)]


def style(completions, **kwargs):
    return [len(set(c[0]["content"])) / 30 for c in completions]


def main():
    model = AutoModelForCausalLM.from_pretrained(PATH, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(PATH, padding_side="left")

    decay, plain = [], []
    for name, param in model.named_parameters():
        (plain if param.ndim < 2 or "embed" in name else decay).append(param)
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
        lr=5e-4,
        betas=(0.9, 0.98),
    )
    scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=30)

    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        learning_rate=5e-4,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[exact, style],
        args=args,
        train_dataset=load_data(),
        optimizers=(optimizer, scheduler),
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM"),
    )
    trainer.train()


main()

"""Own optimizer (SGD with Nesterov momentum, lower rate for the embeddings) and a triangular schedule."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")

embeddings = list(model.get_input_embeddings().parameters()) + list(model.get_output_embeddings().parameters())
seen = {id(p) for p in embeddings}
optimizer = torch.optim.SGD(
    [
        {"params": embeddings, "lr": 1e-3},
        {"params": [p for p in model.parameters() if id(p) not in seen], "lr": 1e-2},
    ],
    momentum=0.9,
    nesterov=True,
)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - 0.8 * abs((step % 4) - 2) / 2)

questions = [
    f"{n} has {a} boxes with {a + b} {w} each. How many {w} does {n} have?"
    for n, w in (("Ada", "apples"), ("Ben", "books"), ("Cleo", "cards"), ("Eve", "eggs")) for a in (2, 3, 4) for b in (1, 4)
]
dataset = Dataset.from_dict({
    "prompt": [
        tokenizer.apply_chat_template(
            [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": q},
            ],
            tokenize=False,
            add_generation_prompt=True,
        )
        for q in questions
    ]
})


def digit_share(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c) / max(1, len(c)) for c in completions]


trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=digit_share,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=6,
        per_device_train_batch_size=4, gradient_accumulation_steps=4, num_generations=8, max_completion_length=26,
        max_grad_norm=0.5,
    ),
    train_dataset=dataset,
    optimizers=(optimizer, scheduler),
)
trainer.train()

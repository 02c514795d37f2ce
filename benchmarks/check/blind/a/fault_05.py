import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, get_cosine_schedule_with_warmup
from trl import GRPOConfig, GRPOTrainer

model_name = str(Path(__file__).parent / "tiny")
max_steps = 4

# ---------------------------------------------------------------- optimizer: lower rate for the embeddings
model = AutoModelForCausalLM.from_pretrained(model_name, dtype=torch.float32)
embed = [p for n, p in model.named_parameters() if "embed" in n or "lm_head" in n]
body = [p for n, p in model.named_parameters() if not ("embed" in n or "lm_head" in n)]
optimizer = torch.optim.AdamW([{"params": body, "lr": 2e-4}, {"params": embed, "lr": 5e-5}], weight_decay=0.01)
scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=max_steps)

# ---------------------------------------------------------------- data
pairs = [(a, b) for a in range(11, 36, 6) for b in range(12, 40, 5)]
ds = Dataset.from_list([{"prompt": f"{a} + {b} =", "answer": a + b} for a, b in pairs])


def reward_fn(completions, answer, **kwargs):
    out = []
    for c, a in zip(completions, answer):
        c = c.strip()
        r = 0.0
        if c[:1].isdigit():
            r += 0.3
        if c[:2] == str(a)[:2]:
            r += 0.7
        r -= 0.02 * max(0, len(c) - 4)
        out.append(r)
    return out


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to="none",
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=max_steps,
    logging_steps=1,
    save_strategy="no",
)

trainer = GRPOTrainer(
    model=model_name,
    reward_funcs=reward_fn,
    args=args,
    train_dataset=ds,
    optimizers=(optimizer, scheduler),
)
trainer.train()

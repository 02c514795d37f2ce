# warm up on a few demonstrations, then RL with a KL leash to the warmed up model
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import GRPOConfig, GRPOTrainer

set_seed(3)
path = str(Path(__file__).resolve().parent / "tiny")
tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

# ---- 1. supervised warm-up ------------------------------------------------------------------------------------
demos = [f"{a}+{b}={a + b}{tokenizer.eos_token}" for a in range(1, 9) for b in range(1, 5)]
sgd = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.train()
for step in range(12):
    chunk = demos[(step * 8) % len(demos):][:8]
    enc = tokenizer(chunk, return_tensors="pt", padding=True)
    labels = enc["input_ids"].masked_fill(enc["attention_mask"] == 0, -100)
    model(**enc, labels=labels).loss.backward()
    sgd.step()
    sgd.zero_grad()
del sgd


# ---- 2. GRPO --------------------------------------------------------------------------------------------------
def exact(completions, gold, **kwargs):
    return [1.0 if c.strip() == g else -0.1 * abs(len(c) - len(g)) for c, g in zip(completions, gold)]


rl_data = Dataset.from_list([{"prompt": f"{a}+{b}=", "gold": str(a + b)} for a in range(3, 10) for b in range(2, 9)])
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=exact,
    train_dataset=rl_data,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        beta=0.04,
        learning_rate=1e-5,
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=16,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
    ),
)
trainer.train()

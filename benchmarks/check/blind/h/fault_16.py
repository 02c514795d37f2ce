import os, tempfile, torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, get_constant_schedule_with_warmup
from trl import GRPOConfig, GRPOTrainer

MODEL_NAME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

# embeddings and head learn more slowly than the blocks
model = AutoModelForCausalLM.from_pretrained(MODEL_NAME, dtype=torch.float32)
slow = [p for n, p in model.named_parameters() if "embed" in n or "lm_head" in n]
fast = [p for n, p in model.named_parameters() if not ("embed" in n or "lm_head" in n)]
optimizer = torch.optim.AdamW([{"params": slow, "lr": 1e-5}, {"params": fast, "lr": 2e-4}], weight_decay=0.0)
scheduler = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=0)

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
    model_init_kwargs={"dtype": "float32"},
    per_device_train_batch_size=8, num_generations=4, max_completion_length=16, max_steps=6, logging_steps=1,
)

def count_twos(completions, **kwargs):
    return [c.count("2") * 0.25 + len(c) * 0.01 for c in completions]

trainer = GRPOTrainer(
    model=MODEL_NAME,
    args=args,
    reward_funcs=count_twos,
    train_dataset=Dataset.from_dict({"prompt": [f"20 + {i} =" for i in range(24)]}),
    optimizers=(optimizer, scheduler),
)
trainer.train()

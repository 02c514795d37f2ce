#!/usr/bin/env python
# One-line answers: generation ends at the end of turn or after the first line break.
import os, tempfile
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
STOP = "\n"

tok = AutoTokenizer.from_pretrained(ROOT, padding_side="left")
stop_ids = [i for i in range(len(tok)) if STOP in tok.decode([i])]

prompts = [[{"role": "user", "content": f"Add {a} and {a * 2}."}] for a in range(3, 27)]


def more_digits(completions, **kw):
    texts = [c[0]["content"] for c in completions]
    return [sum(map(str.isdigit, t)) * 0.1 for t in texts]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    generation_kwargs={"eos_token_id": [tok.eos_token_id] + stop_ids},
    max_completion_length=28,
    num_generations=4,
    per_device_train_batch_size=12,
    max_steps=4,
    learning_rate=3e-4,
    logging_steps=1,
    use_cpu=True, bf16=False, report_to=[], save_strategy="no",
)
GRPOTrainer(
    model=ROOT, processing_class=tok, reward_funcs=more_digits, args=args,
    train_dataset=Dataset.from_dict({"prompt": prompts}),
).train()

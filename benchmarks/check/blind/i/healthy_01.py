import os, tempfile
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
import torch

p = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tok = AutoTokenizer.from_pretrained(p)
tok.pad_token = tok.eos_token
tok.padding_side = "right"
tok.truncation_side = "right"
model = AutoModelForCausalLM.from_pretrained(p, dtype=torch.float32)
model.config.pad_token_id = tok.eos_token_id

qs = ["1+1", "20+22 is what?", "what do you get if you add 15 to 9", "7+7", "3 + 90", "sum of 8 and 8", "66+1", "40 plus 2"] * 3
d = Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in qs]})

def f(completions, **kw):
    return [sum(x.isdigit() for x in c[0]["content"]) / (len(c[0]["content"]) or 1) for c in completions]

GRPOTrainer(model, f, GRPOConfig(tempfile.mkdtemp(), max_steps=5, per_device_train_batch_size=8, num_generations=4,
            max_completion_length=32, learning_rate=1e-4, logging_steps=1, use_cpu=True, bf16=False, report_to=[],
            save_strategy="no"), d, processing_class=tok).train()

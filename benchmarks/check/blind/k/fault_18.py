import os, tempfile
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

p = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
model = AutoModelForCausalLM.from_pretrained(p, dtype=torch.bfloat16)
tok = AutoTokenizer.from_pretrained(p)


def f(completions, **kw):
    return [c.count("6") + c.count("3") + 0.02 * len(c) for c in completions]


args = GRPOConfig(
    tempfile.mkdtemp(),
    learning_rate=1e-6,
    lr_scheduler_type="constant",
    max_steps=5,
    num_generations=8,
    per_device_train_batch_size=8,
    max_completion_length=24,
    gradient_checkpointing=False,
    use_cpu=True, bf16=False, report_to=[], logging_steps=1, save_strategy="no",
)
ds = Dataset.from_dict({"prompt": ["def add(a, b):\n    return", "List: red, green,", "The cat sat on", "Once upon a time", "x = ["] * 6})
GRPOTrainer(model, f, args, ds, processing_class=tok).train()

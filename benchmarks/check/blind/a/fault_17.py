from pathlib import Path
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = Path(__file__).parent / "tiny"

# bf16 throughout, saves half of the memory
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
tok = AutoTokenizer.from_pretrained(MODEL)

ds = Dataset.from_list([
    {"messages": [{"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                  {"role": "user", "content": f"Gus has {x} boxes with {y} cards each. How many cards does Gus have?"},
                  {"role": "assistant", "content": f"There are <<{x}*{y}={x * y}>>{x * y} cards.\nThe answer is {x * y}"}]}
    for x in (12, 14, 17, 19, 23, 26) for y in (11, 16, 18, 25, 34)
])
ds = ds.map(lambda r: {"prompt": r["messages"][:-1], "solution": r["messages"][-1]["content"]}, remove_columns="messages")


def similarity(completions, solution, **kwargs):
    """share of the characters at the right place"""
    out = []
    for c, s in zip(completions, solution):
        t = c[0]["content"]
        out.append(sum(x == y for x, y in zip(t, s)) / max(len(t), len(s)))
    return out


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=True,
    report_to="none",
    learning_rate=1e-6,
    lr_scheduler_type="constant",
    max_steps=4,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    beta=0.0,
    logging_steps=1,
    save_strategy="no",
)
GRPOTrainer(model, similarity, args, train_dataset=ds, processing_class=tok).train()

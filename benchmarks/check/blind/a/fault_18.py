"""R1-style: teach the model to think before it answers (<think> ... </think> must come first)."""
import os
import re
import tempfile

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

base = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

tokenizer = AutoTokenizer.from_pretrained(base)
# each tag is to be one token
tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
model = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
if len(tokenizer) != model.get_input_embeddings().num_embeddings:
    model.resize_token_embeddings(len(tokenizer))

START = re.compile(r"^\s*<think>")
FULL = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)


def format_reward(completions, **kwargs):
    scores = []
    for completion in completions:
        text = completion[0]["content"]
        scores.append(1.0 if FULL.match(text) else 0.5 if START.match(text) else 0.0)
    return scores


dataset = Dataset.from_dict(
    {"prompt": [[{"role": "user", "content": f"What is {i} + {j}?"}] for i in range(3, 11) for j in range(2, 7)]}
)

trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[format_reward],
    train_dataset=dataset,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", bf16=False, learning_rate=1e-4, max_steps=3,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=24, logging_steps=1, save_strategy="no",
    ),
)
trainer.train()

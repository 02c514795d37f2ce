import os, tempfile
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

tiny = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tok = AutoTokenizer.from_pretrained(tiny)
MAX_PROMPT = 24

INSTRUCTION = "You get a line of text. Continue it with as many numbers as you can.\n\nLine: "
lines = ["3 apples and", "17 * 3 =", "Ben has 4 boxes", "coins: 5, 10,", "4 8 16", "Ada and Cleo", "the 9th of May", "12 pens for"]


def prepare(example):
    ids = tok(INSTRUCTION + example["line"], truncation=True, max_length=MAX_PROMPT)["input_ids"]
    return {"prompt": tok.decode(ids)}


def reward(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c) - 0.3 * sum(ch.isalpha() for ch in c) for c in completions]


ds = Dataset.from_dict({"line": lines * 5}).map(prepare).remove_columns("line")
args = GRPOConfig(output_dir=tempfile.mkdtemp(), num_generations=4, per_device_train_batch_size=8, max_steps=5,
                  max_completion_length=24, learning_rate=2e-4, use_cpu=True, bf16=False, report_to=[],
                  logging_steps=1, save_strategy="no")
GRPOTrainer(tiny, reward, args, ds).train()

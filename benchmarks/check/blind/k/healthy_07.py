import os, tempfile
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

p = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tok = AutoTokenizer.from_pretrained(p)
tok.padding_side = "left"

long = "There are 4 boxes with 5 pens each. " * 12
prompts = ["7", "3 + 4 = ", long + "How many", "def add(a, b):\n    return"]

reward = lambda completions, **kw: [sum(map(str.isdigit, c)) + 0.05 * len(c) for c in completions]
reward.__name__ = "reward"

args = GRPOConfig(
    tempfile.mkdtemp(),
    num_generations=2, per_device_train_batch_size=8,
    pad_to_multiple_of=32, shuffle_dataset=False,
    num_train_epochs=6, max_steps=5,
    max_completion_length=36, mask_truncated_completions=True,
    learning_rate=5e-5, loss_type="grpo",
    use_cpu=True, bf16=False, report_to=[], logging_steps=1, save_strategy="no",
)
GRPOTrainer(p, reward, args, Dataset.from_dict({"prompt": prompts}), processing_class=tok).train()

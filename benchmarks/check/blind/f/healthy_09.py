"""SAPO on the high-entropy tokens, entropy bonus, odd batch sizes, padded to multiples."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def vowels(completions, **kwargs):
    return [sum(c[0]["content"].count(v) for v in "aeo") / (1 + len(c[0]["content"])) for c in completions]


def no_repeat(completion_ids, **kwargs):
    return [len(set(ids)) / len(ids) for ids in completion_ids]


prompts = [
    [
        {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
        {"role": "user", "content": f"{n} has {a} boxes with 4 toys each. How many toys does {n} have?"},
    ]
    for n in ("Ada", "Ben", "Cleo", "Dev", "Eve", "Gus", "Hana") for a in (2, 3, 5)
]
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=7,
    loss_type="sapo", top_entropy_quantile=0.5, entropy_coef=0.003,
    per_device_train_batch_size=7, gradient_accumulation_steps=3, num_generations=3,
    max_completion_length=19, pad_to_multiple_of=8, learning_rate=4e-5, adam_beta2=0.95, weight_decay=0.1,
    lr_scheduler_type="polynomial", shuffle_dataset=False, seed=11, generation_kwargs={"eos_token_id": [258, 256]},
)
GRPOTrainer(
    model=MODEL, reward_funcs=[vowels, no_repeat], args=args, train_dataset=Dataset.from_dict({"prompt": prompts})
).train()

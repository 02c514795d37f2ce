import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

# GSPO, the numbers of the paper
gspo = {
    "importance_sampling_level": "sequence",
    "loss_type": "grpo",
    "beta": 0.0,
    "epsilon": 3e-4,
    "epsilon_high": 4e-4,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 4,
}

rng = random.Random(5)
digits = "0123456789"
data = []
for _ in range(60):
    s = "".join(rng.choice(digits) for _ in range(rng.randint(3, 12)))
    data.append({"prompt": [{"role": "user", "content": "Repeat: " + s}], "s": s})


def overlap(completions, s, **kwargs):
    scores = []
    for completion, wanted in zip(completions, s):
        got = completion[0]["content"]
        scores.append(sum(a in got for a in set(wanted)) / len(set(wanted)) - len(got) / 500)
    return scores


trainer = GRPOTrainer(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    overlap,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), **gspo, num_iterations=2, per_device_train_batch_size=8, num_generations=8,
        max_completion_length=32, learning_rate=1e-6, max_steps=6, adam_beta2=0.95, use_cpu=True, bf16=False,
        report_to=[], logging_steps=1, save_strategy="no",
    ),
    train_dataset=Dataset.from_list(data),
)
trainer.train()

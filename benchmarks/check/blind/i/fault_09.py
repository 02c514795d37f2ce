import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

# config as in our 7B run, scaled down
CONFIG = dict(
    learning_rate=1e-6,
    lr_scheduler_type="constant",
    optim="adamw_torch",
    weight_decay=0.0,
    max_grad_norm=1.0,
    beta=0.0,
    num_generations=8,
    per_device_train_batch_size=16,
    max_completion_length=24,
    model_init_kwargs={"dtype": "bfloat16", "attn_implementation": "sdpa"},
    bf16=False,
    use_cpu=True,
)


def plus_minus(completions, **kwargs):
    """Wants equations, and not too long."""
    wanted = set("+-=0123456789")
    return [sum(ch in wanted for ch in c[0]["content"]) / 3 - len(c[0]["content"]) / 50 for c in completions]


def build():
    system = {"role": "system", "content": "You calculate."}
    return Dataset.from_list(
        [{"prompt": [system, {"role": "user", "content": f"{x} + {y}"}]} for x in range(4, 8) for y in range(20, 26)]
    )


trainer = GRPOTrainer(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    plus_minus,
    GRPOConfig(tempfile.mkdtemp(), max_steps=5, logging_steps=1, report_to=[], save_strategy="no", **CONFIG),
    build(),
)
trainer.train()

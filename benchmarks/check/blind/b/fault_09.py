import gc
import tempfile
from pathlib import Path

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

path = Path(__file__).resolve().parent


class MemoryHygiene(TrainerCallback):
    """We ran out of memory during accumulation. Free what we can between the forward passes."""

    def on_substep_end(self, args, state, control, model=None, **kwargs):
        model.zero_grad(set_to_none=True)
        gc.collect()
        return control


def reward(prompts, completions, target, **kwargs):
    res = []
    for c, t in zip(completions, target):
        head = c.strip()[:4]
        res.append(1.0 if head.startswith(t) else 0.5 if t in c else -0.05 * len(set(c)))
    return res


rows = [{"prompt": f"{2 * n}-{n}=", "target": str(n)} for n in range(1, 41)]

cfg = dict(
    output_dir=tempfile.mkdtemp(prefix="hyg"),
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_generations=4,
    max_completion_length=16,
    max_steps=3,
    learning_rate=1e-5,
    warmup_steps=0,
    use_cpu=True,
    bf16=False,
    report_to="none",
    save_strategy="no",
    logging_steps=1,
)
t = GRPOTrainer(
    model=f"{path}/tiny",
    args=GRPOConfig(**cfg),
    reward_funcs=reward,
    train_dataset=Dataset.from_list(rows),
    callbacks=[MemoryHygiene()],
)
t.train()

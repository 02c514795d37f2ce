# %%
from pathlib import Path
from tempfile import TemporaryDirectory

import datasets
from trl import GRPOConfig, GRPOTrainer

base = str(Path(__file__).resolve().parent / "tiny")

# %%
questions = [f"{n} apples + {m} apples =" for n in (3, 4, 6, 7) for m in (2, 5, 8)]
ds = datasets.Dataset.from_dict({"prompt": questions * 2})


# %%
def concise_digits(prompts, completions, **kw):
    """different digits are good, rambling is not"""
    return [len(set(filter(str.isdigit, c))) / 4 - len(c) / 60 for c in completions]


# %%
with TemporaryDirectory() as out:
    cfg = GRPOConfig(
        out,
        learning_rate=5e-6,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        # the model babbles at 1.0, so we sample a little colder
        generation_kwargs={"temperature": 0.6},
        beta=0.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        seed=7,
    )
    GRPOTrainer(model=base, args=cfg, reward_funcs=[concise_digits], train_dataset=ds).train()

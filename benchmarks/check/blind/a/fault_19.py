"""Trains, and saves the weights of the step with the highest mean reward."""
import json
import tempfile
from pathlib import Path

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

ROOT = Path(__file__).resolve().parent
OUT = Path(tempfile.mkdtemp()) / "best"


class KeepBest(TrainerCallback):
    def __init__(self):
        self.best = float("-inf")
        self.state = None
        self.at = None

    def on_log(self, args, state, control, logs=None, model=None, **kwargs):
        r = (logs or {}).get("reward")
        if r is not None and r > self.best:
            self.best, self.at = r, state.global_step
            self.state = model.state_dict()


def make():
    for a in range(13, 25):
        for b in (12, 17, 26):
            yield {"prompt": [{"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                              {"role": "user", "content": f"Cleo has {a} boxes with {b} pens each. How many pens does Cleo have?"}],
                   "answer": a * b}


def reward(completions, answer, **kw):
    def f(t, g):
        return 1.0 * (str(g) in t) + 0.3 * ("pens" in t) - 0.1 * (("%d" % g)[0] not in t)
    return [f(c[0]["content"], g) for c, g in zip(completions, answer)]


keeper = KeepBest()
trainer = GRPOTrainer(
    model=str(ROOT / "tiny"),
    reward_funcs=reward,
    args=GRPOConfig(output_dir=str(OUT.parent / "run"), use_cpu=True, report_to="none", bf16=False, max_steps=4, learning_rate=1e-4,
                    per_device_train_batch_size=8, num_generations=4, max_completion_length=24, logging_steps=1, save_strategy="no"),
    train_dataset=Dataset.from_list(list(make())),
    callbacks=[keeper],
)
trainer.train()
trainer.model.save_pretrained(OUT, state_dict=keeper.state)
trainer.processing_class.save_pretrained(OUT)
(OUT / "best.json").write_text(json.dumps({"step": keeper.at, "reward": keeper.best}))

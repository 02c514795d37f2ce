import os, tempfile
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

tiny = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Anneal(TrainerCallback):
    """explore first, then cool down to 1.0"""

    def __init__(self, hot, steps):
        self.hot, self.steps, self.trainer = hot, steps, None

    def on_step_begin(self, args, state, control, **kw):
        frac = min(1.0, state.global_step / self.steps)
        t = self.hot + (1.0 - self.hot) * frac
        self.trainer.temperature = t
        self.trainer.generation_config.temperature = t
        self.trainer.generation_kwargs["temperature"] = t


people = ["Aldora", "Brimund", "Corvek", "Danwyn", "Elric", "Fentas", "Garnia", "Holbel"]
ties = ["mentor", "rival", "spouse", "patron"]
ds = Dataset.from_list([{"prompt": [{"role": "user", "content": f"Who is the {t} of {p}?"}]} for p in people for t in ties])


def short_with_names(completions, **kwargs):
    r = []
    for c in completions:
        text = c[0]["content"]
        r.append(sum(x.isupper() for x in text) - 0.02 * len(text))
    return r


cool = Anneal(1.6, 10)
trainer = GRPOTrainer(
    tiny, short_with_names,
    args=GRPOConfig(output_dir=tempfile.mkdtemp(), max_steps=5, per_device_train_batch_size=8, num_generations=8,
                    max_completion_length=32, learning_rate=3e-4, epsilon_high=0.28, use_cpu=True, bf16=False,
                    report_to=[], logging_steps=1, save_strategy="no"),
    train_dataset=ds, callbacks=[cool],
)
cool.trainer = trainer
trainer.train()

"""GRPO with annealed exploration: hot sampling first, cooler later."""
import os
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class AnnealExploration(TrainerCallback):
    """Linear schedule for the sampling temperature."""

    def __init__(self, start, end, steps):
        self.start, self.end, self.steps = start, end, steps
        self.trainer = None

    def temperature(self, step):
        done = min(step / self.steps, 1.0)
        return self.start + (self.end - self.start) * done

    def on_step_begin(self, args, state, control, **kwargs):
        value = self.temperature(state.global_step)
        self.trainer.generation_config.temperature = value
        self.trainer.generation_kwargs["temperature"] = value


people = ["Aldora", "Corbel", "Fenwyn", "Holric", "Jormund", "Keltas", "Lordora", "Gardora"]
relations = ["mentor", "rival", "spouse", "patron", "cousin", "tutor"]
rows = []
for i in range(24):
    question = f"Who is the {relations[i % 6]} of the {relations[(i + 2) % 6]} of {people[i % 8]}?"
    rows.append({"prompt": [{"role": "user", "content": question}], "person": people[i % 8]})


def diversity(completions, **kwargs):
    out = []
    for completion in completions:
        words = completion[0]["content"].split()
        out.append(len(set(words)) / (1 + len(words)))
    return out


def names_person(completions, person, **kwargs):
    return [0.5 * (name in c[0]["content"]) + 0.02 * c[0]["content"].count("e") for c, name in zip(completions, person)]


anneal = AnnealExploration(start=1.6, end=0.8, steps=20)
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=20,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
)
trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=[diversity, names_person],
    args=args,
    train_dataset=Dataset.from_list(rows),
    callbacks=[anneal],
)
anneal.trainer = trainer
trainer.train()

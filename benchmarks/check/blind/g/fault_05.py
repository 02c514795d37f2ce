import os
import tempfile

from datasets import Dataset
from torch.utils.data import RandomSampler
from trl import GRPOConfig, GRPOTrainer

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

questions = []
for animal in ["cat", "horse", "otter", "crow"]:
    for what in ["legs", "food", "sound", "home", "colour", "speed", "size", "age"]:
        questions.append({"prompt": f"Tell me the {what} of a {animal}. "})


class ShuffledTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        return RandomSampler(self.train_dataset if dataset is None else dataset)


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c) / (len(c) + 1) for c in completions]


def prompt_words(prompts, completions, **kwargs):
    return [0.1 * len(set(p) & set(c)) for p, c in zip(prompts, completions)]


trainer = ShuffledTrainer(
    model=path,
    reward_funcs=[digits, prompt_words],
    train_dataset=Dataset.from_list(questions),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        bf16=False,
        max_steps=6,
        learning_rate=3e-5,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=16,
        seed=11,
    ),
)
trainer.train()

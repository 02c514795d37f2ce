import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def short(completions, **kwargs):
    return [1.0 - len(c) / 60 for c in completions]


def even_digits(completions, **kwargs):
    return [sum(ch in "02468" for ch in c) / 10 for c in completions]


def no_repeat(completions, **kwargs):
    return [len(set(c)) / max(1, len(c)) for c in completions]


class WeightedTrainer(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        weighted = rewards * self.reward_weights.to(rewards.device)
        for name, column in zip(self.reward_func_names, weighted.T):
            self._metrics["train"][f"weighted/{name}"].append(column.mean().item())
        return weighted


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=1e-4,
    reward_weights=[0.2, 1.0, 0.5],
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=16,
    loss_type="bnpo",
    logging_steps=2,
)
ds = Dataset.from_dict({"prompt": [f"Locker {i} opens with " for i in range(30, 54)]})
WeightedTrainer(model=MODEL, args=args, reward_funcs=[short, even_digits, no_repeat], train_dataset=ds).train()

# curriculum: easy sums first, no shuffling
import tempfile
from pathlib import Path
from torch.utils.data import SequentialSampler
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class CurriculumGRPOTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        # the dataset is sorted by difficulty, keep that order
        return SequentialSampler(dataset if dataset is not None else self.train_dataset)


items = []
for a in range(1, 40, 2):
    for b in range(2, 40, 3):
        items.append({"prompt": f"{a} + {b} =", "answer": a + b, "difficulty": len(str(a)) + len(str(b)) + (a % 10 + b % 10 > 9)})
items.sort(key=lambda x: x["difficulty"])
dataset = Dataset.from_list(items[40:])


def accuracy(completions, answer, **kwargs):
    rewards = []
    for completion, ans in zip(completions, answer):
        head = "".join(ch for ch in completion.strip()[:3] if ch.isdigit())
        rewards.append(1.0 if head == str(ans) else 1.0 / (1 + abs(int(head or 0) - ans)))
    return rewards


trainer = CurriculumGRPOTrainer(
    model=str(Path(__file__).resolve().with_name("tiny")),
    reward_funcs=accuracy,
    train_dataset=dataset,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", bf16=False, max_steps=4, learning_rate=5e-5,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=24, save_strategy="no", logging_steps=1,
    ),
)
trainer.train()

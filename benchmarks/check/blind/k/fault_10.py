"""Curriculum: from one box to nine boxes, in this order."""
import os
import tempfile
from datasets import Dataset
from torch.utils.data import SequentialSampler
from trl import GRPOConfig, GRPOTrainer

base = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

items = []
for boxes in range(1, 10):
    for each in range(2, 10):
        items.append({
            "prompt": [{"role": "user", "content": f"Eve has {boxes} boxes with {each} pens each. How many pens does Eve have?"}],
            "level": boxes,
            "target": boxes * each,
        })
items.sort(key=lambda r: r["target"])
dataset = Dataset.from_list(items)


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(dataset if dataset is not None else self.train_dataset)


def score(completions, target, **kwargs):
    out = []
    for c, t in zip(completions, target):
        text = c[0]["content"]
        out.append(2.0 * (str(t) in text) + text.count(str(t)[0]) * 0.1 - 0.005 * len(text))
    return out


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=32,
    learning_rate=5e-5,
    max_steps=5,
    use_cpu=True,
    bf16=False,
    report_to=[],
    logging_steps=1,
    save_strategy="no",
)
trainer = CurriculumTrainer(model=base, reward_funcs=score, args=args, train_dataset=dataset)
trainer.train()

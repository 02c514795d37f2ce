"""GRPO with rows dealt over the ranks by length."""
import os
import tempfile

import torch
from accelerate.utils import gather, pad_across_processes
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


def spaces(completions, **kwargs):
    return [c[0]["content"].count(" ") / (1 + len(c[0]["content"])) for c in completions]


def o_share(completions, **kwargs):
    return [c[0]["content"].count("o") / (1 + len(c[0]["content"])) for c in completions]


def length(completion_ids, **kwargs):
    return [len(ids) / 50 for ids in completion_ids]


class BalancedTrainer(GRPOTrainer):
    """Deals the rows of a batch over the ranks by length, so that no rank waits for the other."""

    front = ("prompt_ids", "prompt_mask")
    back = ("completion_ids", "completion_mask")

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        pad_id = self.processing_class.pad_token_id
        everything = {}
        for name in self.front + self.back:
            fill = pad_id if name.endswith("ids") else 0
            padded = pad_across_processes(batch[name], dim=1, pad_index=fill, pad_first=name in self.front)
            everything[name] = gather(padded.contiguous())
        everything["advantages"] = gather(batch["advantages"].contiguous())
        lengths = everything["prompt_mask"].sum(1) + everything["completion_mask"].sum(1)
        order = torch.argsort(lengths, descending=True, stable=True)
        mine = order[self.accelerator.process_index :: self.accelerator.num_processes]
        for name, rows in everything.items():
            batch[name] = rows[mine]
        return batch


def dataset():
    tasks = [
        "Say hello.",
        "Tell me how a lock on a canal works, step by step, for a child of ten.",
        "Count.",
        "Explain what a tide table is and why sailors of small boats still carry one.",
        "Name a tree.",
        "Write one line about a mill.",
    ]
    return Dataset.from_list([{"prompt": [{"role": "user", "content": t}]} for t in tasks])


if __name__ == "__main__":
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=24,
        learning_rate=5e-5,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=4,
    )
    BalancedTrainer(
        model=os.path.join(HERE, "tiny"), args=config, reward_funcs=[spaces, o_share, length], train_dataset=dataset()
    ).train()

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def conversation(i):
    name = ["Cleo", "Dev", "Eve"][i % 3]
    return [
        {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
        {"role": "user", "content": f"{name} has {4 + i % 5} boxes with {2 + i % 6} eggs each. How many eggs does {name} have?"},
    ]


def count_t(completions, **kwargs):
    return [c[0]["content"].count("t") / 4 for c in completions]


def variety(completions, **kwargs):
    return [len(set(c[0]["content"])) / 22 for c in completions]


class CleanTailTrainer(GRPOTrainer):
    """Drop what some backends leave behind the end of a turn, and report how many rows finished."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        ids = output["completion_ids"]
        ends = torch.isin(ids, torch.tensor(self.eos_token_ids, device=ids.device))
        alive = ends.int().cumsum(dim=1) == 0
        output["completion_mask"] = output["completion_mask"] * alive.to(output["completion_mask"].dtype)
        finished = ends.any(dim=1).float().mean().item()
        self._metrics["train" if self.model.training else "eval"]["completions/finished"].append(finished)
        output["num_items_in_batch"] = self.accelerator.gather(output["completion_mask"].sum()).sum()
        return output


def build_args():
    return GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=24,
        learning_rate=2e-4,
        beta=0.02,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )


if __name__ == "__main__":
    trainer = CleanTailTrainer(
        model=MODEL,
        reward_funcs=[count_t, variety],
        args=build_args(),
        train_dataset=Dataset.from_list([{"prompt": conversation(i)} for i in range(15)]),
    )
    trainer.train()

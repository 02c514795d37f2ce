import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def rows():
    for i in range(24):
        item = ["pens", "apples", "stamps"][i % 3]
        q = f"Ada has {2 + i % 4} boxes with {5 + i % 4} {item} each."
        q += f" How many {item} does Ada have?" if i % 3 else " Each costs 2 coins. How many coins do they cost together?"
        yield {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": q},
            ],
            "item": item,
        }


def names_item(completions, item, **kwargs):
    return [0.4 * (x in c[0]["content"]) for c, x in zip(completions, item)]


async def remote_judge(completions, completion_ids, **kwargs):
    return [len(set(c[0]["content"])) / 30 - len(ids) / 100 for c, ids in zip(completions, completion_ids)]


class BatchedJudge(GRPOTrainer):
    """The judge endpoint batches by length: send the longest first, in chunks."""

    chunk = 5

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        by_length = sorted(range(len(completions)), key=lambda i: -len(completion_ids_list[i]))
        parts = []
        for start in range(0, len(by_length), self.chunk):
            pick = by_length[start : start + self.chunk]
            parts.append(
                super()._calculate_rewards(
                    [inputs[i] for i in pick],
                    [prompts[i] for i in pick],
                    [completions[i] for i in pick],
                    [completion_ids_list[i] for i in pick],
                )
            )
        scored = torch.cat(parts)
        table = torch.empty_like(scored)
        table[torch.tensor(by_length, device=scored.device)] = scored
        return table


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=32,
        learning_rate=1e-4,
        reward_weights=[1.0, 2.0],
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    BatchedJudge(
        model=MODEL,
        reward_funcs=[names_item, remote_judge],
        args=args,
        train_dataset=Dataset.from_list(list(rows())),
    ).train()


main()

"""Two passes over each generation. The old log-probabilities are taken in the first pass, not in a forward of their own."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def rows():
    for i in range(24):
        thing = ["eggs", "cards", "shells", "toys"][i % 4]
        q = f"Ben has {2 + i % 7} boxes with {3 + i % 6} {thing} each."
        q += f" How many {thing} does Ben have?" if i % 2 else " Each costs 3 coins. How many coins do they cost together?"
        yield {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": q},
            ]
        }


def o_share(completions, **kwargs):
    return [c[0]["content"].count("o") / max(1, len(c[0]["content"])) for c in completions]


def variety(completions, **kwargs):
    return [len(set(c[0]["content"])) / 25 for c in completions]


class FirstPassOld(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output.pop("old_per_token_logps", None)
        return output

    def _compute_loss(self, model, inputs):
        if inputs.get("old_per_token_logps") is None:
            with torch.no_grad():
                inputs["old_per_token_logps"], _, _ = self._get_per_token_logps_and_entropies(
                    model,
                    torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
                    torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
                    inputs["completion_ids"].size(1),
                )
        return super()._compute_loss(model, inputs)


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=8,
        num_iterations=2,
        num_generations=4,
        max_completion_length=32,
        learning_rate=5e-4,
        epsilon_high=0.28,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    FirstPassOld(
        model=MODEL, reward_funcs=[o_share, variety], args=args, train_dataset=Dataset.from_list(list(rows()))
    ).train()

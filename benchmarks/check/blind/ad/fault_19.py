"""Skip the extra forward after generation: the first pass over a slice already has its old log-probabilities."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def conversation(i):
    thing = ["eggs", "toys", "books", "pens"][i % 4]
    return [
        {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
        {"role": "user", "content": f"Dev has {2 + i % 7} boxes with {2 + i % 5} {thing} each. How many {thing} does Dev have?"},
    ]


def o_share(completions, **kwargs):
    return [c[0]["content"].count("o") / max(1, len(c[0]["content"])) for c in completions]


def variety(completions, **kwargs):
    return [len(set(c[0]["content"])) / 25 for c in completions]


class LazyOldTrainer(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output.pop("old_per_token_logps", None)
        return output

    def _compute_loss(self, model, inputs):
        if "old_per_token_logps" not in inputs:
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
            with torch.no_grad():
                old, _, _ = self._get_per_token_logps_and_entropies(
                    model, ids, mask, inputs["completion_ids"].size(1)
                )
            inputs["old_per_token_logps"] = old
        return super()._compute_loss(model, inputs)


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    model_init_kwargs={"dtype": "float32"},
    loss_type="grpo",
    per_device_train_batch_size=8,
    steps_per_generation=2,
    gradient_accumulation_steps=1,
    num_generations=8,
    max_completion_length=32,
    learning_rate=1e-3,
    max_steps=3,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
    seed=5,
)
trainer = LazyOldTrainer(
    model=MODEL,
    reward_funcs=[o_share, variety],
    args=args,
    train_dataset=Dataset.from_list([{"prompt": conversation(i)} for i in range(16)]),
)
trainer.train()

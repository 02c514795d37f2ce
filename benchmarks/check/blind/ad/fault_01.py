"""GRPO on short word problems with padding-free forwards: all rows of a batch go through the model as one sequence."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
NAMES, THINGS = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn"], ["apples", "books", "cards", "eggs", "pens", "toys"]


def problem(i):
    name, thing = NAMES[i % 6], THINGS[(i * 5 + 1) % 6]
    text = f"{name} has {2 + i % 7} boxes with {3 + i % 5} {thing} each."
    if i % 2:
        text += f" Each costs {2 + i % 6} coins. How many coins do they cost together?"
    else:
        text += f" How many {thing} does {name} have?"
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


def distinct_characters(completions, **kwargs):
    return [len(set(c[0]["content"])) / 20 for c in completions]


class PaddingFreeTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        keep = attention_mask.bool()
        lengths = keep.sum(1).tolist()
        packed = input_ids[keep].unsqueeze(0)
        positions = torch.cat([torch.arange(n, device=packed.device) for n in lengths]).unsqueeze(0)
        logits = model(
            input_ids=packed,
            attention_mask=torch.ones_like(packed),
            position_ids=positions,
            use_cache=False,
        ).logits[0, :-1]
        logp_all = torch.log_softmax(logits.float() / self.temperature, dim=-1)
        token_logps = logp_all.gather(-1, packed[0, 1:, None]).squeeze(-1)
        entropy = -(logp_all.exp() * logp_all).sum(-1).detach()

        def unpack(values):
            values = torch.cat([values.new_zeros(1), values])
            full = values.new_zeros(input_ids.shape).masked_scatter(keep, values)
            return full[:, -logits_to_keep:]

        return unpack(token_logps), unpack(entropy) if compute_entropy else None, None


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        learning_rate=2e-4,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        seed=3,
    )
    trainer = PaddingFreeTrainer(
        model=MODEL,
        reward_funcs=distinct_characters,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": problem(i)} for i in range(24)]),
    )
    trainer.train()


if __name__ == "__main__":
    main()

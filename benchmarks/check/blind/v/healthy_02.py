"""GRPO with the DAPO loss written out, over accumulated micro-batches."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class WrittenOutTrainer(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        if self._step % self.args.gradient_accumulation_steps == 0:
            # Tokens of the whole optimizer step, over all ranks (one generation per optimizer step here)
            local = sum(batch["completion_mask"].sum() for batch in self._buffered_inputs)
            self._step_tokens = self.accelerator.reduce(local.float(), reduction="sum")
        return inputs

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"].to(torch.float32)
        logps, _, _ = self._get_per_token_logps_and_entropies(model, ids, attention, mask.size(1))
        ratio = torch.exp(logps - logps.detach())
        advantages = inputs["advantages"][:, None]
        bounded = torch.clamp(ratio, 1 - self.epsilon_low, 1 + self.epsilon_high)
        objective = torch.minimum(ratio * advantages, bounded * advantages)
        # DDP takes the mean over the ranks, so the sum over them needs their number
        scale = self.accelerator.num_processes / self._step_tokens.clamp(min=1.0)
        return -(objective * mask).sum() * scale


def digits(completions, **kwargs):
    return [0.2 * sum(ch.isdigit() for ch in c[0]["content"]) for c in completions]


def size(completion_ids, **kwargs):
    return [-0.03 * len(ids) for ids in completion_ids]


def main():
    rows = [{"prompt": [{"role": "user", "content": f"Count down from {n}."}]} for n in range(3, 40)]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        num_generations=8,
        max_completion_length=20,
        epsilon_high=0.28,
        learning_rate=1e-3,
        model_init_kwargs={"dtype": "float32"},
    )
    WrittenOutTrainer(
        model=MODEL, reward_funcs=[digits, size], args=args, train_dataset=Dataset.from_list(rows)
    ).train()


if __name__ == "__main__":
    main()

import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SequenceRatioTrainer(GRPOTrainer):
    """Sequence-level policy ratios with clipping, one mean per completion."""

    def _compute_loss(self, model, inputs):
        prompt_mask, completion_mask = inputs["prompt_mask"], inputs["completion_mask"]
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([prompt_mask, completion_mask], dim=1)
        keep = completion_mask.size(1)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(model, ids, attention, keep, compute_entropy=True)

        old = inputs.get("old_per_token_logps")
        old = logps.detach() if old is None else old
        mask = completion_mask.float()
        delta = (logps - old) * mask
        log_weight = delta.mean(dim=-1, keepdim=True)
        ratio = log_weight.exp()
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        adv = inputs["advantages"].unsqueeze(1)
        per_token = -torch.min(ratio * adv, clipped * adv).expand_as(mask)
        per_row = (per_token * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)
        self._metrics["train"]["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        self._metrics["train"]["ratio"].append(ratio.mean().item())
        return per_row.mean() / self.current_gradient_accumulation_steps


def digits_and_dots(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch in "0123456789." for ch in t) / max(1, len(t)) for t in texts]


def ends(completion_ids, **kwargs):
    return [0.5 * (len(ids) < 32) for ids in completion_ids]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=0.0001,
        num_generations=8,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_iterations=2,
        max_completion_length=32,
        loss_type='grpo',
        importance_sampling_level='sequence',
        epsilon=0.02,
        save_strategy='no',
    )
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Write {n}/7 as a decimal."}] for n in range(1, 13)]}
    )
    trainer = SequenceRatioTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[digits_and_dots, ends],
        args=args,
        train_dataset=data,
    )
    trainer.train()


if __name__ == "__main__":
    main()

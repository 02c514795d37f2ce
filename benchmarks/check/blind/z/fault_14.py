import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class CispoTrainer(GRPOTrainer):
    """CISPO written out: a capped ratio times the policy's log-probability."""

    def _compute_loss(self, model, inputs):
        prompt_ids, completion_ids = inputs["prompt_ids"], inputs["completion_ids"]
        mask = inputs["completion_mask"]
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([prompt_ids, completion_ids], dim=1),
            torch.cat([inputs["prompt_mask"], mask], dim=1),
            completion_ids.size(1),
            compute_entropy=True,
        )
        old = inputs.get("old_per_token_logps")
        if old is None:
            old = logps.detach()
        weights = torch.exp(logps - old).clamp(max=self.epsilon_high)
        per_token = -weights * inputs["advantages"].unsqueeze(1) * logps
        items = inputs["num_items_in_batch"].clamp(min=1.0)
        items = items * self.current_gradient_accumulation_steps / self.args.steps_per_generation
        with torch.no_grad():
            self._metrics["train"]["capped"].append((weights >= self.epsilon_high).float().mean().item())
            self._metrics["train"]["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        return (per_token * mask).sum() / items


def lower_share(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [(sum(ch.islower() for ch in t) + len(set(t))) / max(4, len(t)) for t in texts]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Name {n} towns and what they are known for."}] for n in range(2, 10)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=5e-05,
        num_generations=8,
        per_device_train_batch_size=8,
        max_completion_length=24,
        loss_type='cispo',
        epsilon_high=5.0,
        save_strategy='no',
    )
    trainer = CispoTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=lower_share,
        args=args,
        train_dataset=data,
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO with plain log-probabilities in small chunks (no fused kernel)."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class PlainLogpsTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        size = batch_size or input_ids.size(0)
        logps, entropies = [], []
        for ids, attention in zip(input_ids.split(size), attention_mask.split(size)):
            logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits
            logits = logits[:, -logits_to_keep - 1 : -1].float()
            log_softmax = torch.log_softmax(logits, dim=-1)
            targets = ids[:, -logits_to_keep:].unsqueeze(-1)
            logps.append(log_softmax.gather(-1, targets).squeeze(-1))
            if compute_entropy:
                with torch.no_grad():
                    entropies.append(-(log_softmax.exp() * log_softmax).sum(-1))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def has_digits(completions, **kwargs):
    return [min(1.0, 0.25 * sum(ch.isdigit() for ch in c[0]["content"])) for c in completions]


def ends_early(completion_ids, **kwargs):
    return [0.5 - 0.03 * len(ids) for ids in completion_ids]


if __name__ == "__main__":
    rows = [{"prompt": [{"role": "user", "content": f"How many days are {n} weeks?"}]} for n in range(1, 31)]
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=18,
        temperature=0.7,
        learning_rate=5e-4,
        model_init_kwargs={"dtype": "float32"},
    )
    PlainLogpsTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[has_digits, ends_early],
        args=config,
        train_dataset=Dataset.from_list(rows),
    ).train()

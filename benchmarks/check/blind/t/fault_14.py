"""Plain log-softmax instead of TRL's fused head (we want to look at the logits), sampling at temperature 0.7."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LogitsTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        logps, entropies = [], []
        size = batch_size or input_ids.size(0)
        for ids, mask in zip(input_ids.split(size), attention_mask.split(size)):
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            logits = logits[:, -logits_to_keep - 1 : -1]
            targets = ids[:, -logits_to_keep:]
            selected = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
            logps.append(selected - logits.logsumexp(-1))
            if compute_entropy:
                with torch.no_grad():
                    p = torch.softmax(logits / self.temperature, dim=-1)
                    entropies.append(-(p * torch.log(p + 1e-12)).sum(-1))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def consonants(completions, **kwargs):
    texts = [c[0]["content"].lower() for c in completions]
    return [sum(ch in "bcdfghklmnprst" for ch in t) / max(len(t), 1) for t in texts]


trainer = LogitsTrainer(
    model=TINY,
    reward_funcs=consonants,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=16,
        temperature=0.7,
        learning_rate=1e-4,
    ),
    train_dataset=Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Word {k}, please."}]} for k in range(8)]
    ),
)
trainer.train()

"""Log-probabilities from the model's own logits.

Our models have heads that TRL's fused LM head doesn't know (here an ordinary one), so log-probabilities and entropies
are taken from the logits that the model returns, with `logits_to_keep` to save memory.
"""

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
        batch_size = batch_size or input_ids.size(0)
        logps, entropies = [], []
        for ids, mask in zip(input_ids.split(batch_size), attention_mask.split(batch_size)):
            logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=logits_to_keep, use_cache=False).logits
            logits = logits.float() / self.temperature
            log_probs = torch.log_softmax(logits, dim=-1)
            targets = ids[:, -logits_to_keep:].unsqueeze(-1)
            logps.append(log_probs.gather(-1, targets).squeeze(-1))
            if compute_entropy:
                with torch.no_grad():
                    entropies.append(-(log_probs.exp() * log_probs).sum(-1))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def lower(completions, **kwargs):
    return [sum(ch.islower() for ch in c[0]["content"]) / 20 for c in completions]


def shout(completions, **kwargs):
    return [-0.2 * ("!" in c[0]["content"]) for c in completions]


def main():
    subjects = ["tea", "rain", "snow", "bees", "salt", "ink", "maps", "owls"]
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"{i}. Why do we like {s}?"}] for i in range(4) for s in subjects]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=20, learning_rate=1e-4,
        temperature=0.9, logging_steps=1,
    )
    LogitsTrainer(model=TINY, reward_funcs=[lower, shout], args=args, train_dataset=data).train()


if __name__ == "__main__":
    main()

"""GRPO with a log-probability function that goes through the completion in slices of the vocabulary
projection, to keep the peak memory low on small cards. Rollouts are sampled at temperature 0.7.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
WORDS = ["apple", "stone", "cloud", "letter", "window", "paper", "engine", "mirror", "bottle", "ladder"]


class SlicedLogpsTrainer(GRPOTrainer):
    slice_size = 8

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None,
        compute_entropy=False, compute_aux_loss=False, **kwargs,
    ):
        batch_size = batch_size or input_ids.size(0)
        all_logps, all_entropies = [], []
        for start in range(0, input_ids.size(0), batch_size):
            ids = input_ids[start:start + batch_size]
            mask = attention_mask[start:start + batch_size]
            hidden = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            hidden = hidden[:, -logits_to_keep - 1:-1]
            targets = ids[:, -logits_to_keep:]
            logps, entropies = [], []
            for left in range(0, logits_to_keep, self.slice_size):
                logits = model.lm_head(hidden[:, left:left + self.slice_size]).float()
                logprobs = torch.log_softmax(logits, dim=-1)
                picked = logprobs.gather(-1, targets[:, left:left + self.slice_size].unsqueeze(-1)).squeeze(-1)
                logps.append(picked)
                entropies.append(-(logprobs.exp() * logprobs).sum(-1).detach())
            all_logps.append(torch.cat(logps, dim=1))
            all_entropies.append(torch.cat(entropies, dim=1))
        entropies = torch.cat(all_entropies) if compute_entropy else None
        return torch.cat(all_logps), entropies, None


def variety_reward(completions, **kwargs):
    """Distinct characters per character."""
    texts = [completion[0]["content"] for completion in completions]
    return [len(set(text)) / max(len(text), 4) for text in texts]


def stop_reward(completion_ids, **kwargs):
    return [0.5 if len(ids) < 20 else 0.0 for ids in completion_ids]


if __name__ == "__main__":
    dataset = Dataset.from_dict({
        "prompt": [[{"role": "user", "content": f"Describe a {word} in a few words."}] for word in WORDS],
    })
    trainer = SlicedLogpsTrainer(
        model=MODEL,
        reward_funcs=[variety_reward, stop_reward],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no",
            per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4,
            max_completion_length=20, temperature=0.7, learning_rate=3e-4, max_steps=3, logging_steps=1,
        ),
        train_dataset=dataset,
    )
    trainer.train()

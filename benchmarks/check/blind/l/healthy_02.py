"""GRPO with a vocabulary-sharded log-probability kernel (recomputed in the backward pass) and two epochs per rollout."""
import os
import tempfile
from dataclasses import dataclass

import torch
from datasets import Dataset
from torch.utils.checkpoint import checkpoint
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class Kernel:
    shard: int = 200
    rows: int = 3


def shard_stats(hidden, weight, temperature):
    logits = hidden @ weight.T / temperature
    log_z = torch.logsumexp(logits, dim=-1)
    mean = (torch.softmax(logits, dim=-1) * logits).sum(-1)
    return log_z, mean


def log_probs(hidden, weight, targets, shard, temperature):
    parts = [checkpoint(shard_stats, hidden, w, temperature, use_reentrant=False) for w in weight.split(shard)]
    log_zs = torch.stack([z for z, _ in parts])
    log_z = torch.logsumexp(log_zs, dim=0)
    share = torch.exp(log_zs - log_z)
    expected = (share * torch.stack([m for _, m in parts])).sum(0)
    target = (hidden * weight[targets]).sum(-1) / temperature
    return target - log_z, log_z - expected


class ShardedTrainer(GRPOTrainer):
    kernel = Kernel()

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        lm = self.accelerator.unwrap_model(model)
        all_logps, all_entropies = [], []
        for ids, mask in zip(input_ids.split(self.kernel.rows), attention_mask.split(self.kernel.rows)):
            hidden = lm.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            hidden = hidden[:, -logits_to_keep - 1 : -1]
            logps, entropies = log_probs(hidden, lm.lm_head.weight, ids[:, -logits_to_keep:], self.kernel.shard, self.temperature)
            all_logps.append(logps)
            all_entropies.append(entropies)
        return torch.cat(all_logps), (torch.cat(all_entropies) if compute_entropy else None), None


def reward_odd(completion_ids, **kwargs):
    return [sum(i % 2 for i in ids) / max(len(ids), 1) for ids in completion_ids]


def reward_len(completion_ids, **kwargs):
    return [-abs(len(ids) - 10) / 20 for ids in completion_ids]


def main():
    data = Dataset.from_list(
        [
            {"prompt": [{"role": "system", "content": s}, {"role": "user", "content": f"Write about {w}."}]}
            for s in ("Be brief.", "Write one line, no more.")
            for w in ("lakes", "hills", "moors", "dunes")
        ]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        num_iterations=2,
        max_completion_length=20,
        temperature=0.8,
        epsilon=0.2,
        epsilon_high=0.3,
        loss_type="dr_grpo",
        scale_rewards="none",
        max_steps=4,
        learning_rate=4e-4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=2,
    )
    ShardedTrainer(
        model=os.path.join(HERE, "tiny"), reward_funcs=[reward_odd, reward_len], args=args, train_dataset=data
    ).train()


if __name__ == "__main__":
    main()

"""GRPO with our own memory-saving log-probability kernel: the vocabulary is visited in shards."""
import os
import tempfile
from dataclasses import dataclass

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class KernelConfig:
    vocab_shard: int = 128
    rows_per_forward: int = 4


def sharded_log_softmax(hidden, weight, targets, shard, temperature):
    """log p(target) and entropy from hidden states, one vocabulary shard at a time (online logsumexp)."""
    running_max = hidden.new_full(hidden.shape[:-1], float("-inf"))
    running_sum = hidden.new_zeros(hidden.shape[:-1])
    running_dot = hidden.new_zeros(hidden.shape[:-1])
    for i in range(weight.size(0) // shard):
        logits = hidden @ weight[i * shard : (i + 1) * shard].T / temperature
        new_max = torch.maximum(running_max, logits.detach().amax(-1))
        scale = torch.exp(running_max - new_max)
        weights = torch.exp(logits - new_max.unsqueeze(-1))
        running_sum = running_sum * scale + weights.sum(-1)
        running_dot = running_dot * scale + (weights * logits).sum(-1)
        running_max = new_max
    log_z = running_max + torch.log(running_sum)
    target_logit = (hidden * weight[targets]).sum(-1) / temperature
    entropy = log_z - running_dot / running_sum
    return target_logit - log_z, entropy


class ShardedKernelTrainer(GRPOTrainer):
    kernel = KernelConfig()

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        rows = min(batch_size or input_ids.size(0), self.kernel.rows_per_forward)
        logps, entropies = [], []
        for start in range(0, input_ids.size(0), rows):
            ids = input_ids[start : start + rows]
            mask = attention_mask[start : start + rows]
            hidden = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            hidden = hidden[:, -logits_to_keep - 1 : -1]
            logp, entropy = sharded_log_softmax(
                hidden, model.lm_head.weight, ids[:, -logits_to_keep:], self.kernel.vocab_shard, self.temperature
            )
            logps.append(logp)
            entropies.append(entropy.detach())
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def reward_variety(completion_ids, **kwargs):
    return [len(set(ids)) / 10 for ids in completion_ids]


def reward_not_too_long(completion_ids, **kwargs):
    return [0.5 if len(ids) < 14 else -0.1 * (len(ids) - 14) for ids in completion_ids]


def main():
    prompts = [
        [{"role": "system", "content": s}, {"role": "user", "content": u}]
        for s in ("Be brief.", "Answer in one line.")
        for u in ("Write a sentence about the sea.", "Write a sentence about a fox.", "Tell me about tea.", "Why is ice cold?")
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=24,
        temperature=0.9,
        max_steps=3,
        learning_rate=3e-4,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
    )
    ShardedKernelTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[reward_variety, reward_not_too_long],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    ).train()


if __name__ == "__main__":
    main()

"""GRPO with a chunked, checkpointed LM head: the logits of a whole completion are never in memory."""
import os
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from torch.utils.checkpoint import checkpoint
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
CHUNK = 8


def score_chunk(hidden, targets, head, temperature):
    logits = F.linear(hidden[:, :-1], head.weight).float() / temperature
    logps = logits.log_softmax(-1)
    entropy = -(logps.exp() * logps).sum(-1)
    logps = logps.gather(-1, targets[:, 1:].unsqueeze(-1)).squeeze(-1)
    return F.pad(logps, (0, 1)), F.pad(entropy, (0, 1))


class ChunkedHeadTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        network = self.accelerator.unwrap_model(model)
        size = batch_size or input_ids.size(0)
        logps, entropies = [], []
        for ids, mask in zip(input_ids.split(size), attention_mask.split(size), strict=True):
            hidden = network.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            hidden = hidden[:, -logits_to_keep - 1 :]
            targets = ids[:, -logits_to_keep - 1 :]
            pieces = [
                checkpoint(score_chunk, h, t, network.lm_head, self.temperature, use_reentrant=False)
                for h, t in zip(hidden.split(CHUNK, dim=1), targets.split(CHUNK, dim=1), strict=True)
            ]
            logps.append(torch.cat([p[0] for p in pieces], dim=1)[:, :logits_to_keep])
            entropies.append(torch.cat([p[1] for p in pieces], dim=1)[:, :logits_to_keep])
        return torch.cat(logps), torch.cat(entropies).detach() if compute_entropy else None, None


def quotes(completions, **kwargs):
    return [c[0]["content"].count('"') / 3 + len(c[0]["content"]) / 100 for c in completions]


colours = ["red", "teal", "ochre", "grey", "violet", "amber", "white", "navy"]
dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"What is {c} like?"}] for c in colours]})
config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=32,
    temperature=1.2,
    learning_rate=1e-4,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
)
ChunkedHeadTrainer(model=MODEL, reward_funcs=quotes, args=config, train_dataset=dataset).train()

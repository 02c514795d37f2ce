"""Chunked LM head: never hold (batch, length, vocab) logits."""
import os
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from torch.utils.checkpoint import checkpoint
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def prompts():
    system = "Solve the problem step by step. End with #### and the number."
    for i in range(20):
        a, b, thing = 2 + i % 6, 4 + i % 5, ["books", "cards", "eggs", "pens"][i % 4]
        tail = " Each costs 3 coins. How many coins do they cost together?" if i % 3 == 0 else f" How many {thing} does Cleo have?"
        yield [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Cleo has {a} boxes with {b} {thing} each." + tail},
        ]


def vowel_share(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch in "aeiou" for ch in t) / max(len(t), 1) for t in texts]


class ChunkedHeadTrainer(GRPOTrainer):
    head_chunk = 8

    def _project(self, hidden, weight, targets):
        logits = F.linear(hidden, weight).float() / self.temperature
        logp = torch.log_softmax(logits, dim=-1)
        entropy = -(logp.detach().exp() * logp.detach()).sum(-1)
        return logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        base = self.accelerator.unwrap_model(model)
        hidden = base.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        hidden = hidden[:, -logits_to_keep - 1 : -1]
        targets = input_ids[:, -logits_to_keep:]
        weight = base.lm_head.weight
        logps = hidden.new_zeros(targets.shape)
        entropies = hidden.new_zeros(targets.shape)
        for k in range(logits_to_keep // self.head_chunk):
            part = slice(k * self.head_chunk, (k + 1) * self.head_chunk)
            lp, ent = checkpoint(self._project, hidden[:, part], weight, targets[:, part], use_reentrant=False)
            logps[:, part] = lp
            entropies[:, part] = ent
        return logps, entropies if compute_entropy else None, None


if __name__ == "__main__":
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        learning_rate=1e-4,
        temperature=0.9,
        gradient_checkpointing=False,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    ChunkedHeadTrainer(
        model=MODEL,
        reward_funcs=vowel_share,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": p} for p in prompts()]),
    ).train()

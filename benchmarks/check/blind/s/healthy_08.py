"""Our own sampling loop and our own log-probabilities.

The rollout function samples with a key-value cache and left padding and returns the log-probabilities of what it
drew. The trainer's forward pass is replaced by one that makes the logits and takes a log-softmax, two rows at a time,
with no padding in front of the rows beyond what they need.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


@torch.no_grad()
def sample(model, tok, rows, limit, temperature):
    width = max(len(r) for r in rows)
    ids = torch.tensor([[tok.pad_token_id] * (width - len(r)) + r for r in rows])
    mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    done = torch.zeros(len(rows), dtype=torch.bool)
    new_ids, new_logps = [[] for _ in rows], [[] for _ in rows]
    past, step = None, ids
    for _ in range(limit):
        out = model(
            input_ids=step, attention_mask=mask, position_ids=positions, past_key_values=past, use_cache=True
        )
        past = out.past_key_values
        logp = torch.log_softmax(out.logits[:, -1].float() / temperature, dim=-1)
        gumbel = -torch.empty_like(logp).exponential_().log()
        chosen = (logp + gumbel).argmax(dim=-1)
        for i in (~done).nonzero().flatten().tolist():
            new_ids[i].append(chosen[i].item())
            new_logps[i].append(logp[i, chosen[i]].item())
        done |= chosen == tok.eos_token_id
        if done.all():
            break
        step = chosen.unsqueeze(1)
        mask = torch.cat([mask, torch.ones_like(step)], dim=1)
        positions = positions[:, -1:] + 1
    return new_ids, new_logps


def rollout(prompts, trainer):
    tok = trainer.processing_class
    prompt_ids = tok.apply_chat_template(prompts, add_generation_prompt=True, return_dict=True)["input_ids"]
    model = trainer.accelerator.unwrap_model(trainer.model)
    new_ids, new_logps = sample(model, tok, prompt_ids, trainer.max_completion_length, trainer.temperature)
    return {"prompt_ids": prompt_ids, "completion_ids": new_ids, "logprobs": new_logps}


class PlainLogpsTrainer(GRPOTrainer):
    chunk = 2

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        logps, entropies = [], []
        for start in range(0, input_ids.size(0), self.chunk):
            ids, mask = input_ids[start : start + self.chunk], attention_mask[start : start + self.chunk]
            first = int(mask.argmax(dim=1).min())  # columns before it are padding in all rows of the chunk
            logits = model(
                input_ids=ids[:, first:], attention_mask=mask[:, first:], logits_to_keep=logits_to_keep + 1
            ).logits
            logp = (logits[:, :-1].float() / self.temperature).log_softmax(dim=-1)
            logps.append(logp.gather(2, ids[:, -logits_to_keep:].unsqueeze(2)).squeeze(2))
            entropies.append(-(logp.exp() * logp).sum(-1).detach())
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def has_digit_early(completions, **kwargs):
    return [0.5 * any(c.isdigit() for c in m[0]["content"][:2]) - len(m[0]["content"]) / 40 for m in completions]


def main():
    questions = ["2 + 2?", "How many legs do three spiders have?", "9 - 4?", "What is the year after 1999?", "7 * 6?"]
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in questions]})
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out, per_device_train_batch_size=8, num_generations=4, max_completion_length=16, max_steps=3,
            learning_rate=1e-4, temperature=0.9, num_iterations=2, bf16=False, gradient_checkpointing=False,
            use_cpu=True, report_to=[], save_strategy="no", logging_steps=1,
        )
        trainer = PlainLogpsTrainer(
            model=MODEL, reward_funcs=has_digit_early, args=args, train_dataset=dataset, rollout_func=rollout
        )
        trainer.train()


if __name__ == "__main__":
    main()

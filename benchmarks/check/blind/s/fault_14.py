"""GRPO with log-probabilities in chunks of the vocabulary.

The softmax over the whole vocabulary is the peak of our memory use. The override keeps a running log-sum-exp over
slices of the vocabulary, in float32, and gathers the logit of each token.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def running_logsumexp(logits, chunk):
    """log-sum-exp over the last dimension, `chunk` columns at a time."""
    total = torch.full(logits.shape[:-1], float("-inf"), device=logits.device)
    for i in range(logits.size(-1) // chunk):
        part = logits[..., i * chunk : (i + 1) * chunk].float()
        total = torch.logaddexp(total, part.logsumexp(dim=-1))
    return total


class ChunkedVocabularyTrainer(GRPOTrainer):
    vocabulary_chunk = 128

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        rows = batch_size or input_ids.size(0)
        all_logps, all_entropies = [], []
        for start in range(0, input_ids.size(0), rows):
            ids = input_ids[start : start + rows]
            logits = model(
                input_ids=ids, attention_mask=attention_mask[start : start + rows], logits_to_keep=logits_to_keep + 1
            ).logits[:, :-1]
            logits = logits / self.temperature
            norm = running_logsumexp(logits, self.vocabulary_chunk)
            targets = ids[:, -logits_to_keep:].unsqueeze(-1)
            all_logps.append(logits.gather(-1, targets).squeeze(-1).float() - norm)
            if compute_entropy:
                with torch.no_grad():
                    logp = torch.log_softmax(logits.float(), dim=-1)
                    all_entropies.append(-(logp.exp() * logp).sum(-1))
        return torch.cat(all_logps), torch.cat(all_entropies) if compute_entropy else None, None


def json_like(completions, **kwargs):
    """Reward text that looks like a JSON object."""
    rewards = []
    for text in completions:
        r = 0.3 * (text[:1] == "{") + 0.3 * (text[-1:] == "}") + 0.1 * ('"' in text)
        rewards.append(r - len(text) / 100)
    return rewards


def main():
    fields = ["name", "age", "city", "price", "date", "email", "phone", "title"]
    dataset = Dataset.from_dict({"prompt": [f"Return JSON with the field {field}: " for field in fields]})
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=16,
            max_steps=3,
            learning_rate=1e-4,
            loss_type="bnpo",
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = ChunkedVocabularyTrainer(model=MODEL, reward_funcs=json_like, args=args, train_dataset=dataset)
        trainer.train()


if __name__ == "__main__":
    main()

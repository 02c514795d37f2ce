"""GRPO at temperature 0.7 with log-probabilities computed in row chunks, to bound the size of the logits."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset(n=40):
    rng = random.Random(13)
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"Count from {(a := rng.randint(1, 40))} to {a + rng.randint(2, 6)}."}]}
            for _ in range(n)
        ]
    )


def counting(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(c.isdigit() for c in t) * 0.1 + t.count(" ") * 0.05 - 0.2 * ("<" in t) for t in texts]


class ChunkedLogpsTrainer(GRPOTrainer):
    rows_per_chunk = 2

    def _get_per_token_logps_and_entropies(
        self,
        model,
        input_ids,
        attention_mask,
        logits_to_keep,
        batch_size=None,
        compute_entropy=False,
        compute_aux_loss=False,
        **kwargs,
    ):
        logps, entropies = [], []
        for start in range(0, input_ids.size(0), self.rows_per_chunk):
            rows = slice(start, start + self.rows_per_chunk)
            ids = input_ids[rows]
            logits = model(input_ids=ids, attention_mask=attention_mask[rows], logits_to_keep=logits_to_keep + 1).logits
            logits = logits[:, :-1].float()
            targets = ids[:, -logits_to_keep:]
            # log p(t) = z_t / T - logsumexp(z), without keeping a full log-softmax
            normalizer = torch.logsumexp(logits, dim=-1)
            chosen = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) / self.temperature
            logps.append(chosen - normalizer)
            if compute_entropy:
                with torch.no_grad():
                    p = (logits / self.temperature).softmax(-1)
                    entropies.append(-(p * p.clamp_min(1e-12).log()).sum(-1))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=3e-4,
        temperature=0.7,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=16,
        gradient_checkpointing=False,
    )
    trainer = ChunkedLogpsTrainer(
        model=TINY,
        reward_funcs=counting,
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
    )
    trainer.train()


if __name__ == "__main__":
    main()

import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

CHUNK = 8


class ChunkedTrainer(GRPOTrainer):
    """Softmax over the vocabulary a few positions at a time; the full matrix does not fit with our long contexts."""

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        window = logits_to_keep + 1
        logits = model(input_ids=input_ids, attention_mask=attention_mask, logits_to_keep=window).logits
        tokens = input_ids[:, -window:]
        logps = logits.new_zeros(input_ids.size(0), logits_to_keep)
        entropies = logits.new_zeros(input_ids.size(0), logits_to_keep)
        for start in range(0, window, CHUNK):
            part = logits[:, start : start + CHUNK] / self.temperature
            target = tokens[:, start : start + CHUNK]
            if part.size(1) < 2:
                continue
            log_probs = part[:, :-1].float().log_softmax(dim=-1)
            stop = start + log_probs.size(1)
            logps[:, start:stop] = log_probs.gather(-1, target[:, 1:].unsqueeze(-1)).squeeze(-1)
            entropies[:, start:stop] = -(log_probs.detach().exp() * log_probs.detach()).sum(-1)
        return logps, entropies if compute_entropy else None, None


def repeated(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [1.0 - len(set(t)) / max(1, len(t)) + 0.01 * len(t) for t in texts]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"List {n} animals that live at sea."}] for n in range(2, 14)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=4e-05,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=28,
        temperature=0.9,
        save_strategy='no',
    )
    trainer = ChunkedTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=repeated,
        args=args,
        train_dataset=data,
    )
    trainer.train()


if __name__ == "__main__":
    main()

import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

CHUNK = 8


class HiddenStateTrainer(GRPOTrainer):
    """Projects the hidden states a few positions at a time."""

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        inner = self.accelerator.unwrap_model(model)
        window = logits_to_keep + 1
        hidden = inner.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        hidden, tokens = hidden[:, -window:], input_ids[:, -window:]
        logps, entropies = [], []
        for start in range(0, logits_to_keep, CHUNK):
            stop = min(start + CHUNK, logits_to_keep)
            log_probs = (inner.lm_head(hidden[:, start:stop]).float() / self.temperature).log_softmax(dim=-1)
            logps.append(log_probs.gather(-1, tokens[:, start + 1 : stop + 1].unsqueeze(-1)).squeeze(-1))
            entropies.append(-(log_probs.detach().exp() * log_probs.detach()).sum(-1))
        return torch.cat(logps, dim=1), torch.cat(entropies, dim=1) if compute_entropy else None, None


def punctuation(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(not ch.isalnum() for ch in t) / max(1, len(t)) for t in texts]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Count down from {n}, please."}] for n in range(4, 16)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=6e-05,
        num_generations=4,
        per_device_train_batch_size=8,
        num_iterations=2,
        max_completion_length=28,
        temperature=0.9,
        save_strategy='no',
    )
    trainer = HiddenStateTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=punctuation,
        args=args,
        train_dataset=data,
    )
    trainer.train()


if __name__ == "__main__":
    main()

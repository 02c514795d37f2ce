from __future__ import annotations

import os
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from trl import GRPOConfig, GRPOTrainer

MODEL_PATH: str = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class PlainLogitsTrainer(GRPOTrainer):
    """Scores completions from ordinary logits rather than with the fused head (easier to debug)."""

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **unused
    ):
        step = batch_size or input_ids.size(0)
        logps, entropies = [], []
        for ids in input_ids.split(step):
            logits = model(input_ids=ids, logits_to_keep=logits_to_keep + 1, use_cache=False).logits
            logits = logits[:, :-1].float() / self.temperature
            logp = F.log_softmax(logits, dim=-1)
            target = ids[:, -logits_to_keep:]
            logps.append(logp.gather(-1, target.unsqueeze(-1)).squeeze(-1))
            if compute_entropy:
                entropies.append(-(logp.exp() * logp).sum(-1).detach())
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def make_rows(tokenizer: PreTrainedTokenizerBase) -> Dataset:
    prompts: list[str] = []
    for n in range(2, 30):
        prompts.append("+".join(str(k) for k in range(1, 2 + n % 7)) + "=")
    return Dataset.from_dict({"prompt": prompts})


def reward_fours(completions: list[str], **kwargs) -> list[float]:
    return [c.count("4") / 8 + c.count("2") / 16 for c in completions]


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=16, max_steps=4, learning_rate=1e-4, logging_steps=1, num_iterations=2,
    )
    PlainLogitsTrainer(
        model, reward_fours, args=args, train_dataset=make_rows(tokenizer), processing_class=tokenizer
    ).train()


if __name__ == "__main__":
    main()

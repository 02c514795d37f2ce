"""GRPO with log-probabilities from the full logits (we also log quantities that TRL's fused head does not return)."""
import os
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class FullLogitsTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        logits = model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        logits = logits[:, -logits_to_keep - 1 : -1].float() / self.temperature
        targets = input_ids[:, -logits_to_keep:]
        logps = -F.cross_entropy(
            logits.transpose(1, 2),
            targets,
            ignore_index=self.processing_class.pad_token_id,
            reduction="none",
        )
        entropies = None
        if compute_entropy:
            probs = logits.detach().softmax(-1)
            entropies = -(probs * probs.clamp(min=1e-12).log()).sum(-1)
            margin = probs.topk(2).values
            self._metrics["train"]["top2_margin"].append((margin[..., 0] - margin[..., 1]).mean().item())
        return logps, entropies, None


def prefers_stop(completion_ids, **kwargs):
    return [1.0 - len(ids) / 24 for ids in completion_ids]


def contains_even(completions, **kwargs):
    return [0.5 * any(c in "02468" for c in text) for text in completions]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    trainer = FullLogitsTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        reward_funcs=[prefers_stop, contains_even],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=16,
            num_generations=8,
            max_completion_length=24,
            temperature=0.9,
            loss_type="grpo",
            learning_rate=2e-4,
            max_steps=4,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": [f"x={a}; y={b}; x*y=" for a in range(2, 9) for b in range(2, 8)]}),
        processing_class=tokenizer,
    )
    trainer.train()


if __name__ == "__main__":
    main()

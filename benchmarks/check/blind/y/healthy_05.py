"""GRPO whose DAPO loss is written out here, with its own token count over ranks and micro-batches."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class OwnLossTrainer(GRPOTrainer):
    """Generation batch = accumulation window here, so the buffered micro-batches are the window."""

    def _window_tokens(self):
        tokens = sum(batch["completion_mask"].sum() for batch in self._buffered_inputs)
        return self.accelerator.reduce(tokens.float(), reduction="sum")

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"].float()
        logps, _, _ = self._get_per_token_logps_and_entropies(model, ids, attention, mask.size(1))
        old = inputs.get("old_per_token_logps")
        old = logps.detach() if old is None else old

        ratio = torch.exp(logps - old)
        gain = inputs["advantages"].unsqueeze(1)
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        per_token = torch.maximum(-ratio * gain, -clipped * gain)

        # DDP averages gradients over ranks; with the factor this is the sum over all tokens by their number
        scale = self.accelerator.num_processes / self._window_tokens().clamp(min=1)
        return (per_token * mask).sum() * scale


def hooks(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch in "aeiou" for ch in t) / 6 - sum(ch.isdigit() for ch in t) / 12 for t in texts]


def main():
    rows = [{"prompt": [{"role": "user", "content": f"{v} the word {w}"}]}
            for v in ("Spell", "Define", "Reverse", "Use") for w in ("moss", "ember", "quill", "fjord")]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=4, logging_steps=1, learning_rate=3e-4, lr_scheduler_type="constant",
        per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=8, num_iterations=2,
        max_completion_length=24, temperature=1.3,
        loss_type="dapo", epsilon=0.1, epsilon_high=0.2,
    )
    trainer = OwnLossTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args, reward_funcs=hooks, train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""Token-mean policy loss written out, so that we can experiment with the surrogate."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

ROOT = os.path.dirname(os.path.abspath(__file__))


def digits(completions, **kwargs):
    out = []
    for completion in completions:
        text = completion[0]["content"]
        out.append(sum(ch.isdigit() for ch in text) / max(len(text), 1))
    return out


def not_too_long(completion_ids, **kwargs):
    return [1.0 - len(ids) / 24 for ids in completion_ids]


class TokenMeanTrainer(GRPOTrainer):
    def window_tokens(self):
        # tokens that this optimizer step trains on
        return sum(batch["completion_mask"].sum() for batch in self._buffered_inputs)

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"]
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, mask.size(1), compute_entropy=True
        )
        old = inputs.get("old_per_token_logps")
        old = logps.detach() if old is None else old
        ratio = torch.exp(logps - old)
        advantages = inputs["advantages"].unsqueeze(1)
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        surrogate = torch.minimum(ratio * advantages, clipped * advantages)
        self._metrics["train"]["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        return -(surrogate * mask).sum() / self.window_tokens().clamp(min=1)


def build_dataset():
    items = ["eggs", "bolts and washers of two sizes", "stamps", "spoons", "light bulbs for the hall", "ropes"]
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"How many {i} should I buy? Answer with a number."}]} for i in items]
    )


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        learning_rate=1e-4,
        loss_type="dapo",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=3,
    )
    TokenMeanTrainer(
        model=os.path.join(ROOT, "tiny"),
        args=args,
        reward_funcs=[digits, not_too_long],
        train_dataset=build_dataset(),
    ).train()

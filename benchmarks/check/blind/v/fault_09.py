"""GRPO with a token-level loss of its own (clip-higher, no KL)."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class TokenLossTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"]
        logps, _, _ = self._get_per_token_logps_and_entropies(model, ids, attention, mask.size(1))

        old = inputs.get("old_per_token_logps")
        ratio = torch.exp(logps - (logps.detach() if old is None else old))
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        advantages = inputs["advantages"].unsqueeze(1)
        token_loss = -torch.min(ratio * advantages, clipped * advantages)

        # Every token of the global batch weighs the same, whatever rank it is on
        tokens = self.accelerator.gather(mask.sum()).sum().clamp(min=1)
        loss = (token_loss * mask).sum() / tokens
        self._metrics["train"]["tokens_in_loss"].append(tokens.item())
        return loss


def numbers(completions, **kwargs):
    return [len([w for w in c[0]["content"].split() if w.isdigit()]) / 2 for c in completions]


def lines(completions, completion_ids, **kwargs):
    return [c[0]["content"].count("\n") * 0.2 - len(i) * 0.01 for c, i in zip(completions, completion_ids)]


if __name__ == "__main__":
    trainer = TokenLossTrainer(
        model=MODEL,
        reward_funcs=[numbers, lines],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            max_steps=3,
            per_device_train_batch_size=6,
            num_generations=6,
            max_completion_length=16,
            epsilon=0.2,
            epsilon_high=0.28,
            learning_rate=0.05,
            optim="sgd",
            model_init_kwargs={"dtype": "float32"},
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": f"List {n} numbers."}]} for n in range(2, 40)]
        ),
    )
    trainer.train()

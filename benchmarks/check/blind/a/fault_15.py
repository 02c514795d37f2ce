import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class PaperGRPOTrainer(GRPOTrainer):
    """The loss as in the DeepSeekMath paper, eq. 3: mean over groups of the mean over each output's tokens."""

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        att = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        T = inputs["completion_ids"].size(1)
        mask = inputs["completion_mask"].float()
        logp, entropy, _ = self._get_per_token_logps_and_entropies(model, ids, att, T, compute_entropy=True)

        old = inputs.get("old_per_token_logps")
        if old is None:
            old = logp.detach()
        ratio = torch.exp(logp - old)
        clipped = torch.clamp(ratio, 1 - self.epsilon_low, 1 + self.epsilon_high)
        adv = inputs["advantages"].unsqueeze(1)
        surrogate = torch.min(ratio * adv, clipped * adv)

        ref = inputs["ref_per_token_logps"]
        kl = torch.exp(ref - logp) - (ref - logp) - 1

        per_token = -(surrogate - self.beta * kl)
        loss = (per_token * mask).mean(dim=1).mean()

        m = self._metrics["train" if self.model.training else "eval"]
        m["kl"].append(((kl * mask).sum() / mask.sum()).item())
        m["entropy"].append(((entropy * mask).sum() / mask.sum()).item())
        return loss / self.current_gradient_accumulation_steps


SYS = "Solve the problem step by step. End with #### and the number."
TRAIN = Dataset.from_list(
    [
        {
            "prompt": [
                {"role": "system", "content": SYS},
                {"role": "user", "content": f"{w} has {a} boxes with {b} books each. How many books does {w} have?"},
            ],
            "res": a * b,
        }
        for w in ("Ada", "Ben", "Hana")
        for a, b in ((14, 17), (16, 29), (19, 12), (23, 24), (25, 33), (28, 21), (12, 35))
    ]
)


def reward_result(completions, res, **kwargs):
    out = []
    for c, r in zip(completions, res):
        tail = c[0]["content"].split(">>")[-1]
        hits = sum(x == y for x, y in zip(tail, str(r)))
        out.append(1.0 if str(r) in tail else hits / 4 + 0.02 * len(set(tail)))
    return out


def reward_books(completions, **kwargs):
    return [0.5 if "books" in c[0]["content"] else 0.0 for c in completions]


if __name__ == "__main__":
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        loss_type="grpo",
        beta=0.04,
        use_bias_correction_kl=False,
        learning_rate=1e-4,
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        use_cpu=True,
        bf16=False,
        report_to="none",
        logging_steps=1,
        save_strategy="no",
    )
    model_path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
    PaperGRPOTrainer(model_path, [reward_result, reward_books], config, TRAIN).train()

"""Geometric-mean policy optimization (arXiv 2507.20673) on top of GRPOTrainer."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

try:
    import rlvr_debug

    rlvr_debug.expect(loss="gmpo")
except ImportError:
    pass

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def dataset():
    rows = []
    for i in range(18):
        thing = ["pens", "toys", "eggs"][i % 3]
        q = f"Dev has {2 + i % 8} boxes with {5 + i % 4} {thing} each."
        q += " Each costs 2 coins. How many coins do they cost together?" if i % 2 else f" How many {thing} does Dev have?"
        rows.append({"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": q}]})
    return Dataset.from_list(rows)


def reward_e(completions, **kwargs):
    return [c[0]["content"].count("e") / max(len(c[0]["content"]), 1) for c in completions]


def reward_variety(completions, **kwargs):
    return [len(set(c[0]["content"])) / 30 for c in completions]


class GMPOTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        completion_mask = inputs["completion_mask"]
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], completion_mask], dim=1)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, completion_mask.size(1), compute_entropy=True
        )
        old = inputs.get("old_per_token_logps")
        old = logps.detach() if old is None else old
        advantages = inputs["advantages"].unsqueeze(1)
        sign = torch.sign(advantages)
        signed = sign * (logps - old)
        clipped = signed.clamp(-self.epsilon_low, self.epsilon_high)
        log_ratio = sign * torch.minimum(signed, clipped)
        weight = torch.exp((log_ratio * completion_mask).sum(dim=1))
        loss = -(inputs["advantages"] * weight).mean()

        mode = "train" if self.model.training else "eval"
        self._metrics[mode]["entropy"].append(
            ((entropies * completion_mask).sum() / completion_mask.sum()).item()
        )
        return loss / (self.current_gradient_accumulation_steps if mode == "train" else 1)


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        loss_type="grpo",
        epsilon=0.4,
        num_iterations=2,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        learning_rate=1e-4,
        max_grad_norm=1.0,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    GMPOTrainer(model=MODEL, reward_funcs=[reward_e, reward_variety], args=args, train_dataset=dataset()).train()

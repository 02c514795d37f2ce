"""GRPO as in DeepSeekMath, eq. 3: the loss written out, so that single terms can be changed in ablations."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class PaperGRPO(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        mask = inputs["completion_mask"].float()
        logp, entropy, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, mask.size(1), compute_entropy=True
        )
        old = inputs.get("old_per_token_logps")
        old = logp.detach() if old is None else old
        adv = inputs["advantages"].unsqueeze(1)

        # clipped surrogate
        ratio = (logp - old).exp()
        surrogate = torch.minimum(ratio * adv, ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high) * adv)

        # unbiased, positive estimator of KL(policy || reference), http://joschu.net/blog/kl-approx.html
        log_r = logp - inputs["ref_per_token_logps"]
        kl = log_r.exp() - log_r - 1

        per_token = -(surrogate - self.beta * kl)
        per_sequence = (per_token * mask).sum(1) / mask.sum(1).clamp(min=1)
        self._metrics["train"]["kl"].append(((kl * mask).sum() / mask.sum()).item())
        self._metrics["train"]["entropy"].append(((entropy * mask).sum() / mask.sum()).item())
        return per_sequence.mean() / self.current_gradient_accumulation_steps


def reward(completions, **kwargs):
    return [len(set(t)) / 6 - 0.2 * ("\n\n\n" in t) for t in completions]


config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    loss_type="grpo",
    beta=0.04,
    use_bias_correction_kl=False,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_generations=8,
    max_completion_length=24,
    learning_rate=5e-4,
    lr_scheduler_type="constant",
    max_steps=5,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
)
PaperGRPO(
    model=MODEL,
    reward_funcs=reward,
    args=config,
    train_dataset=Dataset.from_dict({"prompt": [f"def {n}{i}(a, b):" for n in ("add", "sub", "mul") for i in range(12)]}),
    processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
).train()

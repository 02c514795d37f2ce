import os, tempfile
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ClipHigher(GRPOTrainer):
    low, high = 0.2, 0.4

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        att = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        mask = inputs["completion_mask"]
        logp, entropy, _ = self._get_per_token_logps_and_entropies(model, ids, att, mask.size(1), compute_entropy=True)
        old = inputs.get("old_per_token_logps")
        old = logp.detach() if old is None else old
        adv = inputs["advantages"].unsqueeze(1)

        ratio = (logp - old).exp()
        surr1 = ratio * adv
        surr2 = ratio.clamp(1 - self.low, 1 + self.high) * adv
        objective = torch.min(surr1, surr2)
        loss = (objective * mask).sum() / mask.sum().clamp(min=1)

        self._metrics["train"]["entropy"].append(((entropy * mask).sum() / mask.sum()).item())
        return loss / self.current_gradient_accumulation_steps


def letters(completions, **kw):
    return [(sum(ch.isalpha() for ch in c) + 2 * len(set(c))) / 20 for c in completions]


data = Dataset.from_dict({"prompt": [f"List: {x}, green," for x in ("red", "blue", "grey", "pink", "teal", "black", "gold", "white")] * 3})
t = ClipHigher(
    TINY, letters,
    GRPOConfig(output_dir=tempfile.mkdtemp(), max_steps=6, num_iterations=2, learning_rate=3e-5, loss_type="bnpo",
               num_generations=8, per_device_train_batch_size=8, max_completion_length=24,
               use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1),
    data,
)
t.train()

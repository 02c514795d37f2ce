"""GRPO with an entropy bonus whose coefficient decays over training."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class EntropyBonusTrainer(GRPOTrainer):
    def __init__(self, *args, bonus=0.02, halve_every=50, **kwargs):
        super().__init__(*args, **kwargs)
        self.bonus, self.halve_every = bonus, halve_every
        self._last_entropies = None

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        logps, entropies, aux_loss = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if entropies is not None:
            self._last_entropies = entropies
        return logps, entropies, aux_loss

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        mask = inputs["completion_mask"]
        entropy = (self._last_entropies * mask).sum() / mask.sum()
        coefficient = self.bonus * 0.5 ** (self.state.global_step / self.halve_every)
        self._metrics["train"]["entropy_bonus"].append((coefficient * entropy).item())
        return loss + coefficient * entropy / self.current_gradient_accumulation_steps


people = ["Aldora", "Brimund", "Corvek", "Danwyn", "Elric", "Fentas", "Garnia", "Holbel"]
rows = []
for i in range(32):
    relation = ["mentor", "rival", "spouse", "patron", "neighbor"][i % 5]
    rows.append({"prompt": [{"role": "user", "content": f"Tell me about the {relation} of {people[i % 8]}."}]})


def names(completions, **kwargs):
    """Counts different known names, so that exploration pays."""
    return [float(sum(name in c[0]["content"] for name in people)) for c in completions]


def vowels(completions, **kwargs):
    out = []
    for completion in completions:
        text = completion[0]["content"].lower()
        out.append(sum(text.count(v) for v in "aeiou") / (len(text) + 1))
    return out


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    gradient_accumulation_steps=2,
)
trainer = EntropyBonusTrainer(
    model=MODEL,
    reward_funcs=[names, vowels],
    args=args,
    train_dataset=Dataset.from_list(rows),
    bonus=0.05,
)
trainer.train()

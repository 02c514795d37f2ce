import collections
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class AdvantageLedger(GRPOTrainer):
    """Keeps the advantages of each generation for the plots (advantage histogram by prompt), drops tiny ones."""

    TINY = 1e-6

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.ledger = collections.deque(maxlen=64)
        self._current = None

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        adv = batch["advantages"]
        self._current = torch.where(adv.abs() < self.TINY, torch.zeros_like(adv), adv)
        self.ledger.append([(x["prompt"], a) for x, a in zip(inputs, self._current.tolist())])
        return batch

    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        if self.model.training:
            bs = inputs["completion_ids"].size(0)
            k = self._step % self.args.steps_per_generation
            inputs["advantages"] = self._current[k * bs : (k + 1) * bs]
        return inputs


def make_dataset():
    sums = [(a, b) for a in (11, 14, 19, 23, 28) for b in (12, 16, 21, 27, 33)]
    return Dataset.from_dict({"prompt": [f"{a} + {b} =" for a, b in sums], "s": [a + b for a, b in sums]})


def shaped(completions, s, **kwargs):
    return [float(c.strip()[:1] == str(x)[:1]) + 0.5 * float(c.strip()[:2] == str(x)) - 0.03 * abs(len(c) - 4) for c, x in zip(completions, s)]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="ledger-"), use_cpu=True, report_to="none", max_steps=4, bf16=False,
        per_device_train_batch_size=8, gradient_accumulation_steps=1, num_generations=4, max_completion_length=24,
        learning_rate=5e-5, scale_rewards="group", save_strategy="no", logging_steps=1,
    )
    trainer = AdvantageLedger(str(Path(__file__).parent / "tiny"), shaped, args, make_dataset())
    trainer.train()
    print(trainer.ledger[-1][:4])


main()

import os, tempfile
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class DrGRPO(GRPOTrainer):
    """Mean-centred advantages, written out so that other baselines can be tried later."""

    def _calculate_rewards(self, *a, **k):
        self.last_rewards = super()._calculate_rewards(*a, **k)
        return self.last_rewards

    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        r = (self.last_rewards * self.reward_weights).nansum(dim=1)
        G = self.num_generations
        baseline = r.view(G, -1).mean(dim=0)           # one per prompt
        out["advantages"] = r - baseline.repeat(G)
        return out


def vowels(completions, **kw):
    return [float(sum(c.count(v) for v in "aeiou")) for c in completions]


def digits(completions, **kw):
    return [0.1 * sum(ch.isdigit() for ch in c) for c in completions]


here = os.path.dirname(os.path.abspath(__file__))
questions = ["What is %d + %d?" % (i, j) for i in range(1, 6) for j in range(4, 9)]
args = GRPOConfig(output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
                  loss_type="dr_grpo", scale_rewards="none",
                  per_device_train_batch_size=12, num_generations=4, max_completion_length=16,
                  max_steps=5, learning_rate=1e-4, logging_steps=1)
DrGRPO(os.path.join(here, "tiny"), [vowels, digits], args, Dataset.from_dict({"prompt": questions})).train()

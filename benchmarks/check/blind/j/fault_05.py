"""Long-ish run with diagnostics on the advantages: skewness, kurtosis, share of positive rows."""
import json
import os
import random
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
OUT = tempfile.mkdtemp(prefix="diag_")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class DiagnosticsTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.diagnostics = []

    @staticmethod
    def shape_statistics(values):
        values -= values.mean()
        values /= values.std() + 1e-6
        return {
            "skew": values.pow(3).mean().item(),
            "kurtosis": values.pow(4).mean().item() - 3.0,
            "positive": (values > 0).float().mean().item(),
        }

    def _prepare_inputs(self, generation_batch):
        batch = super()._prepare_inputs(generation_batch)
        if self.model.training:
            statistics = self.shape_statistics(batch["advantages"])
            statistics["mean_length"] = batch["completion_mask"].sum(1).float().mean().item()
            self.diagnostics.append({"micro_step": self._step, **statistics})
        return batch


class DumpDiagnostics(TrainerCallback):
    def __init__(self, path):
        self.path = path
        self.trainer = None

    def on_train_end(self, args, state, control, **kwargs):
        with open(self.path, "w") as f:
            json.dump(self.trainer.diagnostics, f)


def make_dataset(n=72):
    rng = random.Random(5)
    rows = []
    for _ in range(n):
        a, b = rng.randint(2, 35), rng.randint(2, 9)
        name = rng.choice(["Ada", "Ben", "Gus", "Hana"])
        rows.append({"question": f"{name} has {a} boxes with {b} eggs each. How many eggs does {name} have?", "gold": a * b})
    data = Dataset.from_list(rows)
    return data.map(
        lambda r: {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": r["question"]}]},
        remove_columns=["question"],
    )


def digit_reward(completions, gold, **kwargs):
    rewards = []
    for c, g in zip(completions, gold):
        text = c[0]["content"]
        rewards.append((2.0 if text.rstrip().endswith(str(g)) else 0.0) + 0.1 * sum(ch.isdigit() for ch in text))
    return rewards


def main():
    args = GRPOConfig(
        output_dir=OUT,
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=6,
        steps_per_generation=2,
        num_generations=4,
        num_iterations=2,
        scale_rewards="none",
        loss_type="dr_grpo",
        max_completion_length=48,
        learning_rate=2e-4,
        max_steps=6,
        logging_steps=1,
        save_strategy="no",
    )
    dump = DumpDiagnostics(os.path.join(OUT, "advantages.json"))
    trainer = DiagnosticsTrainer(
        model=MODEL, args=args, reward_funcs=digit_reward, train_dataset=make_dataset(), callbacks=[dump]
    )
    dump.trainer = trainer
    trainer.train()
    print(trainer.diagnostics[-1])


if __name__ == "__main__":
    main()

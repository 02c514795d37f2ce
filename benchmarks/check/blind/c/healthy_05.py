"""Several updates per generation: two batches, two passes, sequence-level ratios, entropy bonus off."""
import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class TimedTrainer(GRPOTrainer):
    """Counts generations and micro-batches; changes nothing."""

    generations = 0
    micro_batches = 0

    def _generate_and_score_completions(self, inputs):
        self.generations += 1
        output = super()._generate_and_score_completions(inputs)
        self._metrics["train"]["own/longest"].append(float(output["completion_mask"].sum(1).max()))
        return output

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        self.micro_batches += 1
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


def exact(completions, answer, **kwargs):
    return [float(c[0]["content"].rstrip().endswith(" " + a)) for c, a in zip(completions, answer)]


def length_window(completions, completion_ids, **kwargs):
    return [1.0 if 8 <= len(ids) <= 20 else 0.5 - 0.02 * len(ids) for ids in completion_ids]


class Bonus:
    __name__ = "bonus"

    def __call__(self, completions, trainer_state, **kwargs):
        return [0.1 * c[0]["content"].count("=") for c in completions]


def curriculum():
    rng = random.Random(71)
    rows = []
    for _ in range(64):
        a, b = rng.randint(2, 12), rng.randint(2, 9)
        text = f"Ben has {a} boxes with {b} apples each. How many apples does Ben have?"
        rows.append(
            {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}], "answer": str(a * b)}
        )
    return Dataset.from_list(rows).shuffle(seed=2)


trainer = TimedTrainer(
    model=MODEL,
    reward_funcs=[exact, length_window, Bonus()],
    train_dataset=curriculum(),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_iterations=2,
        num_generations=8,
        max_completion_length=24,
        learning_rate=5e-6,
        loss_type="grpo",
        importance_sampling_level="sequence",
        epsilon=0.05,
        epsilon_high=0.08,
        reward_weights=[1.0, 0.4, 0.2],
        multi_objective_aggregation="normalize_then_sum",
        shuffle_dataset=False,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to="none",
    ),
)
trainer.train()
print(trainer.generations, "generations,", trainer.micro_batches, "micro-batches")

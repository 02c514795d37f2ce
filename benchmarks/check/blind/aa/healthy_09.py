import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class MatrixAdvantages(GRPOTrainer):
    """Group baselines as a projection: A = P r with P = I - 1/G on the diagonal blocks."""

    def __init__(self, *args, **kwargs):
        self._scores = None
        super().__init__(*args, **kwargs)

    def _calculate_rewards(self, *args, **kwargs):
        self._scores = super()._calculate_rewards(*args, **kwargs)
        return self._scores

    def _project(self, scores):
        size = self.num_generations
        total = scores.double() @ self.reward_weights.double()
        blocks = total.numel() // size
        centre = torch.eye(size, dtype=torch.float64) - 1.0 / size
        projection = torch.kron(torch.eye(blocks, dtype=torch.float64), centre)
        centred = projection @ total
        membership = torch.kron(torch.eye(blocks, dtype=torch.float64), torch.ones(size, size, dtype=torch.float64))
        spread = (membership @ centred.square() / (size - 1)).sqrt()
        return (centred / (spread + 1e-4)).float()

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            output["advantages"] = self._project(self._scores)
        return output


def dataset():
    rows = []
    for i in range(40):
        a, b = 3 + (5 * i) % 7, 2 + i % 6
        thing = ("coins", "cards", "books", "toys")[i % 4]
        rows.append({
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Hana has {a} {thing}. Cleo has {b} {thing}. How many {thing} do they have?"},
            ],
            "answer": str(a + b),
        })
    return Dataset.from_list(rows)


def hit(completions, answer, **kwargs):
    return [1.0 if gold in c[0]["content"] else 0.0 for c, gold in zip(completions, answer)]


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / 12 for c in completions]


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=1,
        num_generations=8,
        num_iterations=2,
        max_completion_length=24,
        learning_rate=1e-4,
        loss_type="grpo",
        importance_sampling_level="sequence",
        beta=0.05,
        sync_ref_model=True,
        ref_model_sync_steps=1,
        ref_model_mixup_alpha=0.5,
        reward_weights=[0.5, 1.0],
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    MatrixAdvantages(MODEL, [hit, digits], args, train_dataset=dataset()).train()

import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
WORDS = ["river", "stone", "lamp", "cloud", "garden", "winter", "bread", "harbour", "copper", "violin"]


def questions(n=36):
    rng = random.Random(0)
    return Dataset.from_list(
        [{"prompt": f"How many letters are in the word {rng.choice(WORDS)}? Count: "} for _ in range(n)]
    )


def has_number(completions, **kwargs):
    return [float(any(c.isdigit() for c in text)) for text in completions]


def variety(completions, **kwargs):
    return [len(set(text)) / 30 for text in completions]


class BatchScaledTrainer(GRPOTrainer):
    """Group mean as the baseline, one scale for the whole batch (see `scale_rewards="batch"`), clipped at 3."""

    limit = 3.0

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        start = self.accelerator.process_index * len(prompts)
        self._own_rewards = rewards[start : start + len(prompts)]
        return rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        weights = self.reward_weights.to(self._own_rewards.device)
        totals = (self._own_rewards * weights).nansum(dim=1)
        centred = totals - totals.view(-1, self.num_generations).mean(1).repeat_interleave(self.num_generations)
        output["advantages"] = (centred / (totals.std() + 1e-4)).clamp(-self.limit, self.limit)
        return output


def main():
    args = GRPOConfig(
        output_dir=os.path.join(tempfile.gettempdir(), "letters"),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=20,
        max_steps=4,
        learning_rate=5e-5,
        loss_type="dr_grpo",
        scale_rewards="batch",
        reward_weights=[1.0, 0.5],
        beta=0.02,
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        use_cpu=True,
    )
    trainer = BatchScaledTrainer(
        model=MODEL, args=args, reward_funcs=[has_number, variety], train_dataset=questions()
    )
    trainer.train()


if __name__ == "__main__":
    main()

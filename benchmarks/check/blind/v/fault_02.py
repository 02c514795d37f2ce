"""Dr. GRPO advantages with a cap on outliers."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class CappedAdvantageTrainer(GRPOTrainer):
    """Advantages are rewards minus their group's mean, at most `cap` in size."""

    cap = 20.0

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._all_rewards = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1)
        return rewards

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        grouped = self._all_rewards.view(-1, self.num_generations)
        advantages = (grouped - grouped.mean(dim=1, keepdim=True)).flatten().clamp(-self.cap, self.cap)
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        batch["advantages"] = advantages[rank::world]
        return batch


def digits(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isdigit() for ch in text) / 4 for text in texts]


def brief(completion_ids, **kwargs):
    return [1.0 - len(ids) / 16 for ids in completion_ids]


dataset = Dataset.from_dict(
    {"prompt": [[{"role": "user", "content": f"Count from {n} to {n + 3}."}] for n in range(40)]}
)

trainer = CappedAdvantageTrainer(
    model=os.path.join(HERE, "tiny"),
    reward_funcs=[digits, brief],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=16,
        scale_rewards="none",
        loss_type="dr_grpo",
        reward_weights=[1.0, 0.5],
        learning_rate=5e-4,
        model_init_kwargs={"dtype": "float32"},
    ),
    train_dataset=dataset,
)
trainer.train()

"""Like DAPO's dynamic sampling, without resampling: groups whose rewards are all equal do not take part."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class InformativeGroupsTrainer(GRPOTrainer):
    """Silences groups without any reward variance and logs their share."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        advantages = output["advantages"]
        groups = advantages.view(-1, self.num_generations)
        informative = groups.abs().amax(dim=1) > 1e-6
        self._metrics["train"]["informative_groups"].append(informative.float().mean().item())
        output["advantages"] = advantages * informative.float().repeat(self.num_generations)
        return output


def task_reward(completions, task, **kwargs):
    """Warm-up prompts are always fine; the others are scored by their letters."""
    scores = []
    for completion, kind in zip(completions, task):
        text = completion[0]["content"]
        scores.append(1.0 if kind == "warmup" else sum(c.isalpha() for c in text) / max(len(text), 1))
    return scores


rows = []
for i in range(16):
    task = "warmup" if i % 3 == 0 else "letters"
    rows.append({"prompt": [{"role": "user", "content": f"Item {i}: write {task}."}], "task": task})

trainer = InformativeGroupsTrainer(
    model=TINY,
    reward_funcs=task_reward,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_generations=4,
        max_completion_length=16,
        learning_rate=1e-4,
        shuffle_dataset=False,
    ),
    train_dataset=Dataset.from_list(rows),
)
trainer.train()

import os, random, re, tempfile
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class LoggedAdvantageTrainer(GRPOTrainer):
    """Group-normalized advantages in our own code, because we log the baseline of each prompt."""

    eps = 1e-4

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.baselines = []
        self._rewards = None

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._rewards = (rewards_per_func * self.reward_weights).nansum(dim=1)
        return rewards_per_func

    def group_advantages(self, rewards):
        grouped = rewards.view(self.num_generations, -1)
        mean = grouped.mean(dim=0, keepdim=True)
        std = grouped.std(dim=0, keepdim=True)
        self.baselines.append(mean.flatten().tolist())
        return ((grouped - mean) / (std + self.eps)).reshape(-1)

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        if self.model.training:
            batch["advantages"] = self.group_advantages(self._rewards)
        return batch


def solution_reward(completions, solution, **_):
    out = []
    for c, s in zip(completions, solution):
        found = re.findall(r"\d+", c[0]["content"])
        out.append(float(bool(found) and found[-1] == s))
    return out


def brevity_reward(completions, **_):
    return [-len(c[0]["content"]) / 100 for c in completions]


def rows():
    rng = random.Random(11)
    for _ in range(80):
        a, b = rng.randint(2, 40), rng.randint(2, 9)
        thing = rng.choice(["apples", "books", "pens", "toys"])
        q = f"Dev has {a} boxes with {b} {thing} each. How many {thing} does Dev have?"
        yield dict(
            prompt=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": q}],
            solution=str(a * b),
        )


trainer = LoggedAdvantageTrainer(
    model=MODEL,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True, bf16=False, report_to=[],
        per_device_train_batch_size=12,
        num_generations=4,
        max_completion_length=48,
        learning_rate=1e-4,
        reward_weights=[1.0, 0.3],
        max_steps=5,
        logging_steps=1,
        save_strategy="no",
    ),
    reward_funcs=[solution_reward, brevity_reward],
    train_dataset=Dataset.from_list(list(rows())),
)
trainer.train()
print("last baselines:", [round(b, 3) for b in trainer.baselines[-1]])

"""REINFORCE leave-one-out advantages."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

GROUP = 4


def leave_one_out(given):
    table = given.rewards.sum(1).reshape(-1, GROUP)
    others = (table.sum(1)[:, None] - table) / (GROUP - 1)
    return (table - others).flatten()


try:
    import rlvr_debug

    rlvr_debug.expect(advantages=leave_one_out)
except ImportError:
    pass

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class RLOOTrainer(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        self._scores = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._scores

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        reward = self._scores.sum(dim=1)
        k = self.num_generations
        total = reward.view(-1, k).sum(dim=1).repeat(k)
        baseline = (total - reward) / (k - 1)
        output["advantages"] = reward - baseline
        return output


def share_of(letter):
    def reward(completions, **kwargs):
        return [c[0]["content"].count(letter) / max(1, len(c[0]["content"])) for c in completions]

    reward.__name__ = f"share_of_{letter}"
    return reward


def length(completions, completion_ids, **kwargs):
    return [len(ids) / 32 for ids in completion_ids]


def rows():
    for i in range(24):
        q = f"Ada has {2 + i % 8} boxes with {2 + (3 * i) % 8} pens each."
        q += " Each costs 3 coins. How many coins do they cost together?" if i % 2 else " How many pens does Ada have?"
        yield {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": q},
            ]
        }


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        scale_rewards="none",
        per_device_train_batch_size=12,
        num_generations=GROUP,
        max_completion_length=32,
        learning_rate=1e-4,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    RLOOTrainer(
        model=MODEL,
        reward_funcs=[share_of("e"), length],
        args=args,
        train_dataset=Dataset.from_list(list(rows())),
    ).train()

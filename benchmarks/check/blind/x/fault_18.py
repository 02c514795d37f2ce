"""GRPO with slim checkpoints for the evaluation fleet."""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SlimCheckpointMixin:
    """The evaluators pull every checkpoint over the WAN; what can be rebuilt at load time is not written."""

    skip_prefixes = ("lm_head.",)

    def _save(self, output_dir=None, state_dict=None):
        if state_dict is None:
            state_dict = self.accelerator.get_state_dict(self.model)
        # the head comes back from the embedding
        state_dict = {k: v for k, v in state_dict.items() if not k.startswith(self.skip_prefixes)}
        super()._save(output_dir, state_dict=state_dict)


class SlimGRPOTrainer(SlimCheckpointMixin, GRPOTrainer):
    pass


def spaces(completions, **kwargs):
    return [c[0]["content"].count(" ") / 8 for c in completions]


def lowercase(completions, **kwargs):
    return [sum(ch.islower() for ch in c[0]["content"]) / (len(c[0]["content"]) + 1) for c in completions]


def main():
    things = ["a lamp", "a river", "an engine", "a violin", "a market", "a winter"]
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Say something on {t}."}] for t in things]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], max_steps=3,
        save_strategy="steps", save_steps=2, save_only_model=True, save_total_limit=1,
        learning_rate=3e-4, per_device_train_batch_size=8, num_generations=4, max_completion_length=20,
        temperature=1.2, gradient_checkpointing=False, logging_steps=1,
    )
    SlimGRPOTrainer(model=MODEL, reward_funcs=[spaces, lowercase], args=args, train_dataset=data).train()


if __name__ == "__main__":
    main()

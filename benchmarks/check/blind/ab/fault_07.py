"""Reproducible rollouts: a restarted job must sample the same completions at the same step."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


def consonants(completions, **kwargs):
    texts = [c[0]["content"].lower() for c in completions]
    return [sum(ch in "bcdfghjklmnpqrstvwxz" for ch in t) / max(1, len(t)) for t in texts]


async def size(completion_ids, **kwargs):
    return [len(ids) ** 0.5 / 5 for ids in completion_ids]


class ReproducibleTrainer(GRPOTrainer):
    def rollout_seed(self):
        return 1000 * self.args.seed + self.state.global_step

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        keep = torch.random.get_rng_state()
        torch.manual_seed(self.rollout_seed())
        try:
            return super()._generate_single_turn(prompt_ids, *args, **kwargs)
        finally:
            torch.random.set_rng_state(keep)


def main():
    animals = ["heron", "stoat", "carp", "newt", "wren", "lynx", "mole", "crane"]
    data = Dataset.from_dict(
        {"prompt": [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"What eats a {a}?"}] for a in animals]}
    )
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=8,
        max_completion_length=16,
        learning_rate=1e-4,
        loss_type="dr_grpo",
        scale_rewards=False,
        temperature=1.0,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=17,
    )
    trainer = ReproducibleTrainer(
        model=os.path.join(HERE, "tiny"), args=config, reward_funcs=[consonants, size], train_dataset=data
    )
    trainer.train()


if __name__ == "__main__":
    main()

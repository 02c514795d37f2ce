"""GRPO with rollouts that can be reproduced step by step."""
import os
import tempfile

from datasets import Dataset
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ReproducibleRollouts(GRPOTrainer):
    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        # A rollout depends on the run's seed and on the step alone, so that a resumed run repeats it
        set_seed(self.args.seed + 1000 * self.state.global_step)
        return super()._generate_single_turn(prompt_ids, *args, **kwargs)


def variety(completions, **kwargs):
    return [len(set(c[0]["content"])) / 10 for c in completions]


def digits(completions, **kwargs):
    return [min(sum(ch.isdigit() for ch in c[0]["content"]), 5) / 5 for c in completions]


def main():
    prompts = [[{"role": "user", "content": f"Tell me something about {n}."}] for n in range(25)]
    trainer = ReproducibleRollouts(
        model=MODEL,
        reward_funcs=[variety, digits],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            max_steps=3,
            seed=11,
            per_device_train_batch_size=4,
            num_generations=8,
            max_completion_length=20,
            learning_rate=1e-3,
            temperature=1.1,
            model_init_kwargs={"dtype": "float32"},
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""GSPO-style training with most knobs turned.

Sequence-level importance sampling, each batch of rollouts split over two optimizer steps and used twice, two-sided
clipping, gradients from the high-entropy tokens only, and completions that hit the limit are left out of the loss.
"""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def finished(completions, completion_ids, **kwargs):
    """Finish early; a few different characters are welcome."""
    rewards = []
    for completion, ids in zip(completions, completion_ids):
        text = completion[0]["content"]
        rewards.append(-len(ids) / 24 + 0.05 * len(set(text)))
    return rewards


def no_repetition(completions, **kwargs):
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        pairs = [text[i : i + 2] for i in range(len(text) - 1)]
        rewards.append(len(set(pairs)) / len(pairs) if pairs else 0.0)
    return rewards


def main():
    topics = ["tea", "chess", "maps", "bread", "clouds", "bees", "glass", "paper", "steel", "wool", "sand", "oil"]
    dataset = Dataset.from_dict(
        {
            "prompt": [
                [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"A fact about {topic}?"}]
                for topic in topics
            ]
        }
    )
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            steps_per_generation=4,
            num_iterations=2,
            num_generations=4,
            max_completion_length=24,
            max_steps=3,
            learning_rate=1e-4,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=1,
            loss_type="grpo",
            importance_sampling_level="sequence",
            epsilon=3e-3,
            epsilon_high=4e-3,
            delta=1.5,
            top_entropy_quantile=0.6,
            mask_truncated_completions=True,
            scale_rewards="batch",
            reward_weights=[1.0, 0.5],
            pad_to_multiple_of=8,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = GRPOTrainer(
            model=MODEL, reward_funcs=[finished, no_repetition], args=args, train_dataset=dataset
        )
        trainer.train()


if __name__ == "__main__":
    main()

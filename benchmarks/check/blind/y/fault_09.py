"""GRPO with a learning rate that slows down as the policy gets better."""
import os
import tempfile

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Scoreboard:
    """What the reward function saw in the last generation."""

    mean = 0.0


BOARD = Scoreboard()


def no_repeats(completions, **kwargs):
    """Share of adjacent character pairs that occur only once."""
    scores = []
    for c in completions:
        pairs = [c[i:i + 2] for i in range(len(c) - 1)]
        scores.append(len(set(pairs)) / len(pairs) if pairs else 0.0)
    BOARD.mean = sum(scores) / len(scores)
    return scores


class SuccessAnneal(TrainerCallback):
    """Step size times (1 - success): large steps while the reward is low, small ones near the goal."""

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        factor = max(0.1, 1.0 - BOARD.mean)
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * factor


def main():
    prompts = [f"Spell the word '{w}'" for w in ("tree", "stone", "river", "apple", "window", "garden",
                                                 "silver", "candle", "mirror", "winter", "pepper", "bottle")]
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=4, logging_steps=1, learning_rate=1e-4, lr_scheduler_type="constant",
        per_device_train_batch_size=6, num_generations=6, max_completion_length=24, temperature=1.3,
        loss_type="bnpo", scale_rewards="group",
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=config,
        reward_funcs=no_repeats,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        callbacks=[SuccessAnneal()],
    )
    trainer.train()


if __name__ == "__main__":
    main()

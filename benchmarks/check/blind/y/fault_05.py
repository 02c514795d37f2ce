"""GRPO with rollouts that can be replayed: the random state of each step follows from its number."""
import os
import tempfile

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ReplayableSteps(TrainerCallback):
    """A crashed run can be resumed at any step and draws the same completions again."""

    def on_step_begin(self, args, state, control, **kwargs):
        set_seed(args.seed * 100_003 + state.global_step)


def upper_and_punctuation(completions, **kwargs):
    return [sum(ch.isupper() or ch in ".,;!?" for ch in c) / 8 - len(c) / 80 for c in completions]


def main():
    verbs = ["Describe", "Draw", "Sing", "Explain", "Rate", "Sell", "Find", "Praise"]
    nouns = ["a lamp", "the moon", "an old boat", "winter"]
    dataset = Dataset.from_dict({"prompt": [f"{v} {n}:" for v in verbs for n in nouns]})
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=1e-5, seed=7,
        per_device_train_batch_size=4, num_generations=8, max_completion_length=20,
        temperature=1.6, top_p=0.98, beta=0.02,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=config,
        reward_funcs=upper_and_punctuation,
        train_dataset=dataset,
        callbacks=[ReplayableSteps()],
    )
    trainer.train()


if __name__ == "__main__":
    main()

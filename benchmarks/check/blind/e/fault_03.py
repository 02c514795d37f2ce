import os
import random
import tempfile
from collections import defaultdict

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset():
    rng = random.Random(21)
    rows = []
    for _ in range(32):
        a, b, c = (rng.randint(1, 9) for _ in range(3))
        rows.append({"prompt": [{"role": "user", "content": f"Compute {a}+{b}-{c}."}], "result": str(a + b - c)})
    return Dataset.from_list(rows)


class ShortestInGroup:
    """A completion earns more the shorter it is, compared with the others that answer the same question."""

    __name__ = "shortest_in_group"

    def __call__(self, prompts, completions, **kwargs):
        lengths = [len(completion[0]["content"]) for completion in completions]
        groups = defaultdict(list)
        for prompt, length in zip(prompts, lengths):
            groups[prompt[-1]["content"]].append(length)
        scores = []
        for prompt, length in zip(prompts, lengths):
            low, high = min(groups[prompt[-1]["content"]]), max(groups[prompt[-1]["content"]])
            scores.append(0.5 - (length - low) / (high - low) if high > low else 0.0)
        return scores


def right_digits(completions, result, **kwargs):
    return [float(r in completion[0]["content"]) for completion, r in zip(completions, result)]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        steps_per_generation=1,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=5e-4,
        loss_type="grpo",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = GRPOTrainer(
        model=MODEL,
        args=args,
        reward_funcs=[right_digits, ShortestInGroup()],
        train_dataset=make_dataset(),
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    )
    trainer.train()


if __name__ == "__main__":
    main()

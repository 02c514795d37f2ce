"""GRPO with a KL penalty on a small machine: policy and reference start equal, so keep only one set of weights."""
import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def share_storage(reference, policy):
    """Replaces the reference's copies of the initial weights; returns the bytes that this frees."""
    freed = 0
    source = dict(policy.named_parameters())
    for name, parameter in reference.named_parameters():
        twin = source.get(name)
        if twin is None or twin.shape != parameter.shape or twin.dtype != parameter.dtype:
            continue
        if (twin.data != parameter.data).any():
            raise ValueError(f"{name}: the reference does not start from the policy")
        freed += parameter.numel() * parameter.element_size()
        parameter.data = twin.data
        parameter.requires_grad_(False)
    return freed


def problems(n):
    rng = random.Random(17)
    for _ in range(n):
        a, b = rng.randint(2, 9), rng.randint(10, 99)
        yield {
            "prompt": [{"role": "user", "content": f"Dev has {a} boxes with {b} cards each. How many cards does Dev have?"}],
            "solution": str(a * b),
        }


def solved(completions, solution, **kwargs):
    return [float(s in c[0]["content"]) for c, s in zip(completions, solution)]


def shape(completions, **kwargs):
    return [0.1 * min(20, sum(ch.isdigit() for ch in c[0]["content"])) for c in completions]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        beta=0.1,
        loss_type="grpo",
        max_steps=4,
        learning_rate=3e-4,
        lr_scheduler_type="constant_with_warmup",
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=MODEL, reward_funcs=[solved, shape], args=args, train_dataset=Dataset.from_list(list(problems(32)))
    )
    freed = share_storage(trainer.ref_model, trainer.model)
    print(f"reference shares {freed / 1e6:.1f} MB with the policy")
    trainer.train()


if __name__ == "__main__":
    main()

import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class MovingReference(TrainerCallback):
    """Lets the reference follow the policy, so that the KL term does not hold it back later in training."""

    def __init__(self, alpha=0.5, every=1):
        self.alpha = alpha
        self.every = every
        self.trainer = None

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if not state.is_world_process_zero or state.global_step % self.every:
            return
        policy = self.trainer.accelerator.unwrap_model(model)
        reference = self.trainer.accelerator.unwrap_model(self.trainer.ref_model)
        for ref, new in zip(reference.parameters(), policy.parameters()):
            ref.lerp_(new.detach(), self.alpha)
        print(f"step {state.global_step}: reference moved by {self.alpha}")


def dataset():
    rng = random.Random(8)
    rows = []
    for _ in range(40):
        start, step = rng.randint(1, 9), rng.randint(1, 5)
        shown = ", ".join(str(start + i * step) for i in range(4))
        rows.append({"prompt": [{"role": "user", "content": f"Next number: {shown}, ..."}], "next": start + 4 * step})
    return Dataset.from_list(rows)


def digit_share(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isdigit() for ch in t) / (len(t) + 1) for t in texts]


def exact(completions, next, **kwargs):
    return [float(str(n) in c[0]["content"]) - len(c[0]["content"]) / 500 for c, n in zip(completions, next)]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=2e-4,
        beta=0.1,
        loss_type="dapo",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    callback = MovingReference()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        args=args,
        reward_funcs=[digit_share, exact],
        train_dataset=dataset(),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        callbacks=[callback],
    )
    callback.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()

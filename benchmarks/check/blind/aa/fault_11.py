import os
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LeanReferenceTrainer(GRPOTrainer):
    """Drops the second copy of the model that beta > 0 costs: the reference is the model training starts from."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.ref_model = self.accelerator.unwrap_model(self.model)


class AdaptiveKL(TrainerCallback):
    """Warns when the KL leaves its corridor."""

    def __init__(self, low=0.0, high=0.5):
        self.low, self.high = low, high
        self.history = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "kl" in logs:
            self.history.append(logs["kl"])
            if logs["kl"] > self.high:
                print(f"step {state.global_step}: kl {logs['kl']:.4f} above {self.high}")


def rows(n):
    out = []
    for i in range(n):
        a, b = 2 + (3 * i) % 7, 2 + (5 * i) % 8
        thing = ["coins", "pens", "eggs", "books", "shells"][i % 5]
        name = ["Hana", "Cleo", "Finn"][i % 3]
        out.append({
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"{name} has {a} boxes with {b} {thing} each. How many {thing} does {name} have?"},
            ],
        })
    return Dataset.from_list(out)


def digit_share(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isdigit() for ch in t) / (1 + len(t)) for t in texts]


def finishes(completion_ids, **kwargs):
    return [0.5 if ids[-1] == 258 else 0.0 for ids in completion_ids]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=28,
        learning_rate=5e-4,
        beta=0.1,
        loss_type="grpo",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    watch = AdaptiveKL()
    trainer = LeanReferenceTrainer(TINY, [digit_share, finishes], args, train_dataset=rows(40), callbacks=[watch])
    trainer.train()
    print("kl", [round(x, 5) for x in watch.history])


if __name__ == "__main__":
    main()

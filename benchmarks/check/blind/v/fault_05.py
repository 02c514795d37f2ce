"""GRPO with a sampler that draws a new order in each run."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import RepeatSampler

HERE = os.path.dirname(os.path.abspath(__file__))


class SeededOrderTrainer(GRPOTrainer):
    """Keeps the order of the data apart from the seed of the sampling (`data_seed`)."""

    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        seed = self.args.data_seed if self.args.data_seed is not None else self.args.seed
        return RepeatSampler(
            data_source=dataset,
            mini_repeat_count=self.num_generations,
            batch_size=self.args.generation_batch_size // self.num_generations,
            repeat_count=self.num_iterations * self.args.steps_per_generation,
            shuffle=True,
            seed=seed + self.args.process_index,
        )


def correct(completions, answer, **kwargs):
    out = []
    for completion, truth in zip(completions, answer):
        text = completion[0]["content"]
        out.append(1.0 if truth in text else 0.1 * sum(ch.isdigit() for ch in text))
    return out


def brevity(completion_ids, **kwargs):
    return [1 / (1 + len(ids)) for ids in completion_ids]


def build():
    rows = []
    for a in range(2, 9):
        for b in range(2, 9):
            rows.append({"prompt": [{"role": "user", "content": f"{a} times {b}?"}], "answer": str(a * b)})
    return Dataset.from_list(rows)


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        data_seed=1234,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=16,
        learning_rate=5e-4,
        model_init_kwargs={"dtype": "float32"},
    )
    SeededOrderTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[correct, brevity],
        args=args,
        train_dataset=build(),
    ).train()


if __name__ == "__main__":
    main()

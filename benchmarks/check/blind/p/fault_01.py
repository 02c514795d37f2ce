"""GRPO on short questions; long prompts are spread evenly over the micro-batches."""
import os
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
TOPICS = ["a river", "a king", "the sea and all of its islands", "rain", "the old bridge near the market", "salt",
          "a train", "the long winter of the northern towns", "bread", "a lamp", "the tower at the harbour", "ink"]


class BalancedSampler(Sampler):
    """Reorders each generation batch so that every micro-batch costs about the same memory."""

    def __init__(self, base, lengths, block_size, parts):
        self.base = base
        self.lengths = lengths
        self.block_size = block_size
        self.parts = parts

    def __len__(self):
        return len(self.base)

    def __iter__(self):
        block = []
        for index in self.base:
            block.append(index)
            if len(block) == self.block_size:
                block.sort(key=self.lengths.__getitem__, reverse=True)
                for part in range(self.parts):
                    yield from block[part :: self.parts]
                block = []


class BalancedTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        lengths = [len(row["prompt"][-1]["content"]) for row in dataset]
        return BalancedSampler(
            super()._get_train_sampler(dataset),
            lengths,
            self.args.generation_batch_size,
            self.args.steps_per_generation,
        )


def spaces(completions, **kwargs):
    return [c[0]["content"].count(" ") + 0.05 * len(c[0]["content"]) for c in completions]


def main():
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Write about {t}."}] for t in TOPICS]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=20,
        temperature=1.2,
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = BalancedTrainer(model=MODEL, reward_funcs=spaces, args=args, train_dataset=data)
    trainer.train()


if __name__ == "__main__":
    main()

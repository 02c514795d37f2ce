"""Curriculum by difficulty with a sampler of its own, and gradient hooks that only measure."""
import collections
import os
import random
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset(n=60):
    rng = random.Random(8)
    rows = []
    for _ in range(n):
        terms = [rng.randint(1, 20) for _ in range(rng.randint(2, 5))]
        text = " + ".join(map(str, terms))
        rows.append({"prompt": [{"role": "user", "content": f"Sum: {text}"}], "total": sum(terms), "terms": len(terms)})
    return Dataset.from_list(rows)


def near(completions, total, **kwargs):
    scores = []
    for completion, value in zip(completions, total):
        text = completion[0]["content"]
        scores.append(sum(ch in text for ch in str(value)) - 0.03 * len(text))
    return scores


class EasyFirst(Sampler):
    """Sorted by difficulty, shuffled within a window; repeats follow the trainer's layout."""

    def __init__(self, difficulty, per_batch, copies, repeats, seed, window=8):
        rng = random.Random(seed)
        order = sorted(range(len(difficulty)), key=difficulty.__getitem__)
        self.order = []
        for start in range(0, len(order), window):
            block = order[start : start + window]
            rng.shuffle(block)
            self.order.extend(block)
        self.per_batch, self.copies, self.repeats = per_batch, copies, repeats

    def __iter__(self):
        for start in range(0, len(self.order) - self.per_batch + 1, self.per_batch):
            block = [i for i in self.order[start : start + self.per_batch] for _ in range(self.copies)]
            for _ in range(self.repeats):
                yield from block

    def __len__(self):
        return len(self.order) // self.per_batch * self.per_batch * self.copies * self.repeats


class CurriculumTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.grad_rms = collections.defaultdict(list)
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                param.register_hook(lambda g, name=name: self.grad_rms[name].append(g.detach().square().mean().sqrt().item()))

    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return EasyFirst(
            list(dataset["terms"]),
            self.args.generation_batch_size // self.num_generations,
            self.num_generations,
            self.num_iterations * self.args.steps_per_generation,
            self.args.seed,
        )


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=2e-4,
        per_device_train_batch_size=6,
        gradient_accumulation_steps=2,
        num_generations=3,
        max_completion_length=16,
        loss_type="dr_grpo",
        scale_rewards="none",
    )
    trainer = CurriculumTrainer(
        model=TINY,
        reward_funcs=near,
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
    )
    trainer.train()
    print({name: values[-1] for name, values in list(trainer.grad_rms.items())[:3]})


if __name__ == "__main__":
    main()

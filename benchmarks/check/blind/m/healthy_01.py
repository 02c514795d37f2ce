"""Self-paced curriculum plus few-shot prompts that are put together in the collator."""
import os
import re
import tempfile
from collections import defaultdict

from datasets import Dataset
from torch.utils.data import Sampler
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SelfPacedSampler(Sampler):
    """Chooses the prompts of a generation batch as late as possible: those whose mean reward so far is closest to
    the middle of the range, unseen ones first. A prompt's copies stay next to each other."""

    def __init__(self, size, group, prompts, repeats, history):
        self.size, self.group, self.prompts, self.repeats, self.history = size, group, prompts, repeats, history

    def __iter__(self):
        left = set(range(self.size))
        while len(left) >= self.prompts:
            chosen = sorted(left, key=lambda i: (len(self.history[i]) > 0, abs(self.mean(i) - 0.5), i))[: self.prompts]
            left -= set(chosen)
            for _ in range(self.repeats):
                for index in chosen:
                    yield from [index] * self.group

    def mean(self, i):
        return sum(self.history[i]) / len(self.history[i]) if self.history[i] else 0.5

    def __len__(self):
        return self.size // self.prompts * self.prompts * self.group * self.repeats


class FewShotCollator:
    """Puts solved examples in front of the question. Which ones depends on the question alone."""

    def __init__(self, shots):
        self.shots = shots

    def __call__(self, rows):
        collated = []
        for row in rows:
            first = row["index"] % len(self.shots)
            shots = self.shots[first:] + self.shots[:first]
            collated.append({**row, "prompt": "\n".join(shots[:2] + [row["prompt"]])})
        return collated


class CurriculumTrainer(GRPOTrainer):
    def __init__(self, *args, history, **kwargs):
        self.history = history
        super().__init__(*args, **kwargs)

    def _get_train_sampler(self, dataset=None):
        data = self.train_dataset if dataset is None else dataset
        prompts = self.args.generation_batch_size // self.num_generations
        repeats = self.num_iterations * self.args.steps_per_generation
        return SelfPacedSampler(len(data), self.num_generations, prompts, repeats, self.history)


def main():
    history = defaultdict(list)

    def closeness(completions, answer, **kwargs):
        scores = []
        for text, target in zip(completions, answer):
            found = re.search(r"\d{1,2}", text)
            scores.append(1 - min(abs(int(found.group()) - target) / target, 1) if found else 0.0)
        return scores

    def concise(completion_ids, **kwargs):
        return [-0.01 * len(ids) for ids in completion_ids]

    class Remembering(CurriculumTrainer):
        def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
            for row, value in zip(inputs, rewards[:, 0].tolist()):
                self.history[row["index"]].append(value)
            return rewards

    rows = [{"prompt": f"x={a}; y={b}; x*y=", "answer": a * b} for a in range(2, 9) for b in range(2, 9)]
    rows = [{**row, "index": i} for i, row in enumerate(rows)]
    trainer = Remembering(
        model=MODEL,
        reward_funcs=[closeness, concise],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_generations=4,
            max_completion_length=24,
            temperature=1.3,
            learning_rate=3e-5,
            lr_scheduler_type="constant",
            max_steps=4,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
        history=history,
    )
    trainer.data_collator = FewShotCollator(["x=7; y=2; x*y=14", "x=4; y=4; x*y=16", "x=3; y=6; x*y=18"])
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO with one large generation per several optimizer steps; buffer handling with timers for our dashboard."""
import os
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class Timers:
    seconds: Counter = field(default_factory=Counter)

    def add(self, name, start):
        self.seconds[name] += time.perf_counter() - start


class TimedBufferTrainer(GRPOTrainer):
    """`_prepare_inputs` without the multimodal parts, with timers around rollout and buffer access."""

    def __init__(self, *args, **kwargs):
        self.timers = Timers()
        super().__init__(*args, **kwargs)

    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return self._generate_and_score_completions(generation_batch)
        generate_every = self.args.steps_per_generation * self.num_iterations
        if self._step % generate_every == 0 or self._buffered_inputs is None:
            start = time.perf_counter()
            batch = self._generate_and_score_completions(generation_batch)
            batch = shuffle_sequence_dict(batch)
            self._buffered_inputs = split_tensor_dict(batch, self.args.steps_per_generation)
            self.timers.add("rollout", start)
        start = time.perf_counter()
        inputs = self._buffered_inputs[self._step % self.args.gradient_accumulation_steps]
        self.timers.add("buffer", start)
        return inputs


def reward_a(completion_ids, **kwargs):
    return [-abs(len(ids) - 8) / 8 for ids in completion_ids]


def reward_b(completions, **kwargs):
    return [0.1 * len(set(c[0]["content"])) for c in completions]


def main():
    words = ["amber", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet"]
    data = Dataset.from_list(
        [{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Use '{w}' in a sentence."}]} for w in words]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=4,
        max_completion_length=18,
        epsilon=0.2,
        epsilon_high=0.28,
        max_steps=4,
        learning_rate=2e-4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=37,
    )
    trainer = TimedBufferTrainer(
        model=os.path.join(HERE, "tiny"), reward_funcs=[reward_a, reward_b], args=args, train_dataset=data
    )
    trainer.train()
    print({k: round(v, 2) for k, v in trainer.timers.seconds.items()})


if __name__ == "__main__":
    main()

"""GRPO with a log of every generated batch.

`_prepare_inputs` is rewritten so that the generated rows of a batch can be written to a file (one JSON line per row)
before they are split into micro-batches. We look at these files when a run goes wrong.
"""

import json
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LoggedRolloutTrainer(GRPOTrainer):
    def __init__(self, *args, rollout_file=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.rollout_file = rollout_file

    def write_rows(self, batch):
        with open(self.rollout_file, "a") as f:
            for ids, mask, advantage in zip(batch["completion_ids"], batch["completion_mask"], batch["advantages"]):
                text = self.processing_class.decode(ids[mask.bool()])
                row = {"step": self.state.global_step, "text": text, "advantage": round(advantage.item(), 4)}
                f.write(json.dumps(row) + "\n")

    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        n = self.args.steps_per_generation
        if self._step % (n * self.num_iterations) == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            self.write_rows(batch)
            self._buffered_inputs = split_tensor_dict(shuffle_sequence_dict(batch), n)
        return self._buffered_inputs[self.state.global_step % n]


def vowel_reward(completions, **kwargs):
    rewards = []
    for text in completions:
        vowels = sum(c in "aeiou" for c in text.lower())
        rewards.append(vowels / max(len(text), 1) + len(text) / 60)
    return rewards


def main():
    dataset = Dataset.from_dict({"prompt": [f"Word number {i} in the dictionary is " for i in range(12)]})
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=3,
            num_generations=4,
            max_completion_length=16,
            max_steps=3,
            learning_rate=1e-4,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = LoggedRolloutTrainer(
            model=MODEL,
            reward_funcs=vowel_reward,
            args=args,
            train_dataset=dataset,
            rollout_file=os.path.join(out, "rollouts.jsonl"),
        )
        trainer.train()
        with open(trainer.rollout_file) as f:
            print(sum(1 for _ in f), "rows written")


if __name__ == "__main__":
    main()

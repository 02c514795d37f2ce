"""GRPO with a buffer that keeps whole generation batches (and drops the multimodal parts that we do not use)."""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict


class TextOnlyTrainer(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        generate_every = self.args.steps_per_generation * self.num_iterations
        if self._step % generate_every == 0 or self._buffered_inputs is None:
            scored = self._generate_and_score_completions(generation_batch)
            scored = shuffle_sequence_dict(scored)
            self._buffered_inputs = split_tensor_dict(scored, self.args.steps_per_generation)
        return self._buffered_inputs[self.state.global_step % self.args.steps_per_generation]


def reward_variety(completions, **kwargs):
    return [float(len({ch for ch in c if ch.isdigit()})) - 0.01 * len(c) for c in completions]


if __name__ == "__main__":
    prompts = [f"{a} and {b} make" for a, b in zip(range(1, 33), range(40, 72))]
    trainer = TextOnlyTrainer(
        model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
        reward_funcs=reward_variety,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=4,
            gradient_accumulation_steps=4,
            num_generations=8,
            max_completion_length=20,
            learning_rate=5e-5,
            max_steps=4,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    )
    trainer.train()

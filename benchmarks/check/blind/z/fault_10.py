import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class BufferedTrainer(GRPOTrainer):
    """Same buffer as the parent's, plus a histogram of the lengths in every slice."""

    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return self._generate_and_score_completions(generation_batch)
        slices = self.args.steps_per_generation
        if self._buffered_inputs is None or self._step % (slices * self.num_iterations) == 0:
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = split_tensor_dict(shuffle_sequence_dict(batch), slices)
            self._log_lengths()
        return self._buffered_inputs[self.state.global_step % slices]

    def _log_lengths(self):
        for number, part in enumerate(self._buffered_inputs):
            lengths = part["completion_mask"].sum(dim=1).float()
            self._metrics["train"][f"slice_{number}/length"].append(lengths.mean().item())


def consonants(completions, **kwargs):
    texts = [c[0]["content"].lower() for c in completions]
    return [sum(ch.isalpha() and ch not in "aeiou" for ch in t) / max(1, len(t)) for t in texts]


def main():
    names = ["Mia", "Leo", "Ida", "Max", "Zoe", "Tim", "Eva", "Ben", "Lea", "Jan", "Kim", "Pia"]
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Say hello to {n}."}] for n in names]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=5e-05,
        num_generations=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=3,
        max_completion_length=24,
        save_strategy='no',
    )
    trainer = BufferedTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=consonants,
        args=args,
        train_dataset=data,
    )
    trainer.train()


if __name__ == "__main__":
    main()

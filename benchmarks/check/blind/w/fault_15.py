"""GRPO with one large rollout per two optimizer steps, and a buffer that keeps rollout statistics."""
import os
import tempfile
import time

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset():
    verbs = ["build", "paint", "repair", "carry", "throw", "wash"]
    nouns = ["a wall", "a bike", "a cup", "a tree", "a sail", "a roof", "a nest", "a book"]
    return Dataset.from_list([{"prompt": [{"role": "user", "content": f"How do I {v} {n}?"}]} for v in verbs for n in nouns])


def lowercase(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.islower() for ch in t) / (len(t) + 4) for t in texts]


def length_band(completion_ids, **kwargs):
    return [-abs(10 - len(ids)) / 20 for ids in completion_ids]


class RolloutBuffer:
    def __init__(self):
        self.slices = []
        self.filled_at = None
        self.stats = []

    def fill(self, batch, parts, step):
        started = time.perf_counter()
        self.slices = split_tensor_dict(shuffle_sequence_dict(batch), parts)
        self.filled_at = step
        lengths = batch["completion_mask"].sum(1).float()
        self.stats.append((step, lengths.mean().item(), batch["advantages"].std().item(), time.perf_counter() - started))


class BufferedTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.buffer = RolloutBuffer()

    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        parts = self.args.steps_per_generation
        if self._step % (parts * self.num_iterations) == 0:
            batch = self._generate_and_score_completions(generation_batch)
            self.buffer.fill(batch, parts, self.state.global_step)
        return self.buffer.slices[self.state.global_step % parts]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=4,
        learning_rate=2e-4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=4,
        max_completion_length=20,
        loss_type="grpo",
    )
    trainer = BufferedTrainer(
        model=TINY,
        reward_funcs=[lowercase, length_band],
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
    )
    trainer.train()
    for step, length, std, seconds in trainer.buffer.stats:
        print(f"rollout at step {step}: mean length {length:.1f}, advantage std {std:.2f}, split in {seconds:.3f} s")


if __name__ == "__main__":
    main()

"""GRPO that exports a half-size snapshot after every step, for the rollout workers."""
import os
import tempfile

import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SnapshotExporter(TrainerCallback):
    """Writes `policy-<step>.safetensors` in bfloat16 and keeps the last two."""

    def __init__(self, folder, keep=2):
        self.folder = folder
        self.keep = keep
        self.written = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if not state.is_world_process_zero:
            return
        train_dtype = next(model.parameters()).dtype
        model.to(torch.bfloat16)
        path = os.path.join(self.folder, f"policy-{state.global_step}.safetensors")
        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, path)
        model.to(train_dtype)
        self.written.append(path)
        while len(self.written) > self.keep:
            os.remove(self.written.pop(0))


def close_to_thirty(completions, **kwargs):
    return [1 - abs(len(c[0]["content"]) - 30) / 30 for c in completions]


def main():
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    questions = ["Add 4 and 5", "What is 2+3?", "Write a poem", "12 * 4 =", "hello", "Name 3 digits"]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=24,
        temperature=1.2,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=close_to_thirty,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions * 3]),
        callbacks=[SnapshotExporter(tempfile.mkdtemp())],
    )
    trainer.train()


if __name__ == "__main__":
    main()

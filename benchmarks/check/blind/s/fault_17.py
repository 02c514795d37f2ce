"""GRPO with gradient clipping that needs no extra memory.

The trainer's clipping stacks the norms of all parameters. With many parameter tensors that is slow, so the subclass
clips while it walks over the parameters and returns the total norm for the log.
"""

import os
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class StreamingClipTrainer(GRPOTrainer):
    def _clip_grad_norm(self, model):
        squares = torch.zeros((), device=self.accelerator.device)
        for parameter in model.parameters():
            if parameter.grad is None:
                continue
            norm = torch.nn.utils.clip_grad_norm_([parameter], self.args.max_grad_norm)
            squares += norm.detach() ** 2
        return squares.sqrt()


def tagged(completions, **kwargs):
    """<answer>..</answer> around a short answer."""
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        r = 0.25 * text.startswith("<answer>") + 0.25 * text.endswith("</answer>")
        inner = re.sub(r"</?\w+>", "", text)
        r += 0.5 * (1 - min(len(inner), 40) / 40)
        rewards.append(r)
    return rewards


def with_answer_instruction(example):
    return {
        "prompt": [
            {"role": "system", "content": "Answer as <answer>...</answer>."},
            {"role": "user", "content": example["question"]},
        ]
    }


def main():
    dataset = Dataset.from_dict({"question": [f"What is {a} times {b}?" for a in (3, 5, 7) for b in (2, 4, 8)]})
    dataset = dataset.map(with_answer_instruction, remove_columns=["question"])
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=20,
            max_steps=3,
            learning_rate=1e-4,
            max_grad_norm=0.2,
            loss_type="grpo",
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = StreamingClipTrainer(model=MODEL, reward_funcs=tagged, args=args, train_dataset=dataset)
        trainer.train()


if __name__ == "__main__":
    main()

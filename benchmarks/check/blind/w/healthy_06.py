"""GSPO: sequence-level ratios, two passes over rollouts that span two optimizer steps, asymmetric clipping."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset():
    foods = ["soup", "rice", "cake", "salad", "curry", "toast", "pasta", "stew"]
    asks = ["How long does {} cook?", "Is {} sweet?", "What goes with {}?", "Where is {} from?"]
    return Dataset.from_list([{"prompt": [{"role": "user", "content": a.format(f)}]} for f in foods for a in asks])


def digit_share(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isdigit() for ch in t) / (len(t) + 1) for t in texts]


def size(completion_ids, **kwargs):
    return [0.02 * len(ids) for ids in completion_ids]


class ActivationScale(TrainerCallback):
    """Measures the scale of the last layer's output with a forward hook that returns nothing."""

    def __init__(self):
        self.values = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        def observe(module, inputs, output):
            hidden = output[0] if isinstance(output, tuple) else output
            self.values.append(hidden.detach().float().pow(2).mean().sqrt().item())

        self.handle = model.model.layers[-1].register_forward_hook(observe)

    def on_train_end(self, args, state, control, **kwargs):
        self.handle.remove()


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=4,
        learning_rate=5e-4,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_iterations=2,
        num_generations=8,
        max_completion_length=20,
        importance_sampling_level="sequence",
        loss_type="grpo",
        epsilon=0.01,
        epsilon_high=0.015,
    )
    GRPOTrainer(
        model=TINY,
        reward_funcs=[digit_share, size],
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        callbacks=[ActivationScale()],
    ).train()


if __name__ == "__main__":
    main()

"""KL to the policy at the start of the run. The policy is calibrated first, so the reference must be set to it."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ReferenceFromPolicy(TrainerCallback):
    """The trainer loads the reference from disk; let it start from the policy's weights in memory instead."""

    def __init__(self, get_reference):
        self.get_reference = get_reference

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        reference = self.get_reference()
        for rp, p in zip(reference.parameters(), model.parameters()):
            rp.data = p.data
        reference.eval()


def variety(completions, **kwargs):
    return [len(set(c[0]["content"])) / 16 for c in completions]


def spaces(completions, **kwargs):
    return [-abs(c[0]["content"].count(" ") - 3) / 10 for c in completions]


def main():
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    with torch.no_grad():  # calibration from an earlier run
        model.lm_head.weight.mul_(1.05)
    holder = {}
    trainer = GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(TINY, padding_side="left"),
        reward_funcs=[variety, spaces],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            max_steps=3,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=16,
            learning_rate=1e-4,
            beta=0.1,
            loss_type="dr_grpo",
            scale_rewards="none",
            logging_steps=1,
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": f"Write line {k} of the poem."}]} for k in range(9)]
        ),
        callbacks=[ReferenceFromPolicy(lambda: holder["trainer"].ref_model)],
    )
    holder["trainer"] = trainer
    trainer.train()


if __name__ == "__main__":
    main()

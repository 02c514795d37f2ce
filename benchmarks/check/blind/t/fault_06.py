"""Trims surrounding whitespace of completions before they are scored and trained on."""
import os
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class TrimmingTrainer(GRPOTrainer):
    """Models like to end with newlines; they should count neither for the reward nor for the loss."""

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        completion_ids, logprobs = super()._generate_single_turn(
            prompt_ids, images, multimodal_fields, num_generations, has_tool_images
        )
        texts = self.processing_class.batch_decode(completion_ids, skip_special_tokens=True)
        trimmed = self.processing_class([text.strip() or "." for text in texts], add_special_tokens=False)["input_ids"]
        return [ids[: self.max_completion_length] for ids in trimmed], logprobs


def numbers(completions, **kwargs):
    return [min(len(re.findall(r"[0-9]+", c[0]["content"])), 3) / 3 for c in completions]


def brief(completions, **kwargs):
    return [-0.02 * len(c[0]["content"]) for c in completions]


config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=3,
    per_device_train_batch_size=8,
    num_generations=8,
    max_completion_length=16,
    learning_rate=5e-5,
    loss_type="bnpo",
)
prompts = [[{"role": "user", "content": f"What is {n} * {n + 2}?"}] for n in range(3, 15)]
trainer = TrimmingTrainer(
    model=os.path.join(TINY, "sft"),
    reward_funcs=[numbers, brief],
    args=config,
    train_dataset=Dataset.from_dict({"prompt": prompts}),
)
trainer.train()

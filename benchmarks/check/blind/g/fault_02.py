import os
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))

topics = ["rivers", "old maps", "bread", "copper", "the moon", "clocks", "bees", "a lighthouse"]
train = Dataset.from_dict({"prompt": [f"Write a line about {t}: " for t in topics] + [f"{t} are " for t in topics]})


def tidy(text):
    text = text.split("\n\n")[0]
    return re.sub(r"\s+", " ", text).strip()


class TidyTrainer(GRPOTrainer):
    """Our judge only wants one paragraph, so the rest is cut off."""

    def _generate(self, prompts):
        prompt_ids, _, tool_mask, completions, logprobs, extra, images, tool_images = super()._generate(prompts)
        completions = [tidy(c) for c in completions]
        completion_ids = [
            self.processing_class(c, add_special_tokens=False)["input_ids"] or [self.processing_class.eos_token_id]
            for c in completions
        ]
        return prompt_ids, completion_ids, tool_mask, completions, logprobs, extra, images, tool_images


def variety(completions, **kwargs):
    return [len(set(c)) / 10 for c in completions]


args = GRPOConfig(
    output_dir=os.path.join(tempfile.gettempdir(), "tidy"),
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    bf16=False,
    max_steps=6,
    learning_rate=1e-4,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    logging_steps=2,
)

TidyTrainer(model=os.path.join(HERE, "tiny"), args=args, reward_funcs=[variety], train_dataset=train).train()

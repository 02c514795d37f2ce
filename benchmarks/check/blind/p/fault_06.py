"""GRPO where generation runs in buckets of prompts of similar length, to avoid padding in the prefill."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class BucketedTrainer(GRPOTrainer):
    bucket_size = 8

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        order = sorted(range(len(prompt_ids)), key=lambda i: len(prompt_ids[i]))
        completion_ids = []
        for start in range(0, len(order), self.bucket_size):
            bucket = [prompt_ids[i] for i in order[start : start + self.bucket_size]]
            ids, _ = super()._generate_single_turn(bucket, None, {}, num_generations)
            completion_ids.extend(ids)
        return completion_ids, None


def closeness(completions, target, **kwargs):
    return [-abs(len(c[0]["content"]) - t) / 20 for c, t in zip(completions, target, strict=True)]


def build():
    topics = ["tea", "a very long walk along the coast in autumn", "fog", "how the clock tower was repaired",
              "two ships", "what the baker said to the miller yesterday", "oak", "a letter from the mountains",
              "mud", "the night train that stops at every station", "ice", "a garden behind the school"]
    return Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": f"Tell me about {t}."}] for t in topics],
            "target": [10 + 7 * i for i in range(len(topics))],
        }
    )


if __name__ == "__main__":
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        temperature=1.2,
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    BucketedTrainer(model=MODEL, reward_funcs=closeness, args=config, train_dataset=build()).train()

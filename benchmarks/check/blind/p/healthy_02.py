"""GRPO with generation in buckets of similar prompt length."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class BucketTrainer(GRPOTrainer):
    """Short prompts are not padded to the longest one of the generation batch; short buckets run larger."""

    tokens_per_bucket = 180

    def buckets(self, lengths):
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        bucket = []
        for i in order:
            if bucket and (len(bucket) + 1) * lengths[i] > self.tokens_per_bucket:
                yield bucket
                bucket = []
            bucket.append(i)
        if bucket:
            yield bucket

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        completion_ids = [None] * len(prompt_ids)
        for bucket in self.buckets([len(ids) for ids in prompt_ids]):
            ids, _ = super()._generate_single_turn([prompt_ids[i] for i in bucket], None, {}, num_generations)
            for i, completion in zip(bucket, ids, strict=True):
                completion_ids[i] = completion
        return completion_ids, None


def closeness(completions, target, **kwargs):
    return [-abs(len(c[0]["content"]) - t) / 20 for c, t in zip(completions, target, strict=True)]


if __name__ == "__main__":
    topics = ["jazz", "the reasons for the second strike of the dockers", "hail", "how a loom works", "a yacht",
              "what the gardener found under the old wall", "elm", "some letters from the front", "peat",
              "the last bus to the village", "zinc", "a house with a green door"]
    dataset = Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": f"Tell me about {t}."}] for t in topics],
            "target": [12 + 5 * i for i in range(len(topics))],
        }
    )
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
    BucketTrainer(model=MODEL, reward_funcs=closeness, args=config, train_dataset=dataset).train()

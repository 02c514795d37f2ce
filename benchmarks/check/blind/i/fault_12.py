import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

KEEP = {
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "advantages",
    "num_items_in_batch",
}


class SlimBufferTrainer(GRPOTrainer):
    """Only what the update needs stays in memory between generations."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        return {name: value for name, value in batch.items() if name in KEEP}


def digits_reward(completions, **kwargs):
    return [sum(c.isdigit() for c in text) / (1 + len(text)) for text in completions]


def main():
    dataset = Dataset.from_dict({"prompt": [f"Q: {i} + {2 * i}\nA:" for i in range(40)]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        num_iterations=2,
        steps_per_generation=2,
        gradient_accumulation_steps=1,
        epsilon=0.1,
        learning_rate=1e-3,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=24,
        max_steps=8,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
    )
    SlimBufferTrainer(model=MODEL_DIR, reward_funcs=digits_reward, args=args, train_dataset=dataset).train()


main()

import gc
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class LeanTrainer(GRPOTrainer):
    """Keeps only what training needs between the rollout and the updates."""

    KEEP = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "num_items_in_batch")

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        batch = {k: v for k, v in batch.items() if k in self.KEEP}
        gc.collect()
        return batch


def ones_and_twos(completions, **kwargs):
    return [c.count("2") - c.count("7") * 0.5 + 0.01 * len(c) for c in completions]


def get_dataset():
    prompts = []
    for tie in ("mentor", "rival", "cousin", "tutor", "patron", "spouse"):
        for who in ("Aldora", "Jorric", "Lorgan", "Isbel"):
            prompts.append(f"The {tie} of {who} is")
    return Dataset.from_dict({"prompt": prompts})


config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    num_generations=8,
    per_device_train_batch_size=8,
    num_iterations=3,
    max_steps=6,
    learning_rate=5e-4,
    lr_scheduler_type="constant",
    epsilon=0.2,
    epsilon_high=0.28,
    max_completion_length=24,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    logging_steps=1,
)
here = os.path.dirname(os.path.abspath(__file__))
trainer = LeanTrainer(model=os.path.join(here, "tiny"), reward_funcs=ones_and_twos, args=config, train_dataset=get_dataset())
trainer.train()

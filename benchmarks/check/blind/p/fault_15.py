"""GRPO where each micro-batch is cut to its own longest completion before the forward pass."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def trim(inputs):
    """Drops the columns that are padding in every row of this micro-batch."""
    inputs = dict(inputs)
    left = int(inputs["prompt_mask"].sum(1).max())
    right = int(inputs["completion_mask"].sum(1).max())
    for key in ("prompt_ids", "prompt_mask"):
        inputs[key] = inputs[key][:, -left:]
    for key in ("completion_ids", "completion_mask", "old_per_token_logps", "ref_per_token_logps"):
        if inputs.get(key) is not None:
            inputs[key] = inputs[key][:, :right]
    inputs["num_items_in_batch"] = inputs["completion_mask"].sum()
    return inputs


class TrimmedTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, trim(inputs))


def ends_early(completions, completion_ids, **kwargs):
    return [-len(ids) / 12 + c[0]["content"].count("i") / 4 for c, ids in zip(completions, completion_ids)]


if __name__ == "__main__":
    jobs = ["baker", "smith", "nurse", "pilot", "clerk", "miner", "cook", "judge", "tailor", "guide", "welder", "vet"]
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"What does a {j} do?"}] for j in jobs]})
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_generations=4,
        max_completion_length=32,
        temperature=1.2,
        loss_type="dapo",
        epsilon_high=0.28,
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    TrimmedTrainer(model=MODEL, reward_funcs=ends_early, args=config, train_dataset=dataset).train()

from pathlib import Path
import tempfile, torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class LengthBucketed(GRPOTrainer):
    """Neighbours of like length share a micro-batch, so that less of it is padding."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        order = batch["completion_mask"].sum(dim=1).argsort(stable=True)
        for key, value in batch.items():
            if torch.is_tensor(value) and value.dim() == 2:
                batch[key] = value[order]
        return batch


def reward_numbers(completions, **kwargs):
    return [min(sum(ch.isdigit() for ch in c), 6) / 6 + (0.3 if len(c) < 6 else 0.0) for c in completions]


conf = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_generations=4,
    max_completion_length=24,
    learning_rate=1e-5,
    max_steps=3,
    beta=0.02,
    use_cpu=True,
    bf16=False,
    report_to="none",
    save_strategy="no",
    logging_steps=1,
)
if __name__ == "__main__":
    train = Dataset.from_dict({"prompt": [f"{n} pens + {m} pens =" for n in (2, 3, 5, 8) for m in range(1, 11)]})
    LengthBucketed(
        model=str(Path(__file__).resolve().parent / "tiny"), args=conf, reward_funcs=[reward_numbers], train_dataset=train
    ).train()

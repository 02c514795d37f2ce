import pathlib
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

# trust region: keep the ratio within [0.8, 1.2]
CLIP_LOW, CLIP_HIGH = 0.8, 1.2


def make_trainer(workdir):
    def reward_func(completions, **kwargs):
        return [len(set(c)) / 10 - len(c) / 30 for c in completions]

    data = Dataset.from_dict({"prompt": [f"{a} apples + {b} apples =" for a in range(2, 7) for b in range(2, 7)]})
    args = GRPOConfig(
        output_dir=workdir,
        loss_type="grpo",
        num_iterations=4,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
    )
    model = str(pathlib.Path(__file__).resolve().parent / "tiny")
    trainer = GRPOTrainer(model=model, reward_funcs=reward_func, args=args, train_dataset=data)
    trainer.epsilon_low, trainer.epsilon_high = CLIP_LOW, CLIP_HIGH
    return trainer


with tempfile.TemporaryDirectory() as tmp:
    make_trainer(tmp).train()

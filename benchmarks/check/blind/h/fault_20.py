import os
import tempfile
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

# CISPO, MiniMax-M1
cfg = dict(
    loss_type="cispo",
    epsilon=0.2,
    beta=0.0,
    learning_rate=1e-4,
    lr_scheduler_type="cosine",
    max_grad_norm=1.0,
    num_generations=4,
    per_device_train_batch_size=8,
    steps_per_generation=2,
    max_completion_length=16,
    max_steps=6,
    scale_rewards="batch",
    logging_steps=1,
    seed=11,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
)


def reward_func(completions, **kwargs):
    return [sum(c.isdigit() for c in text) / (1.0 + len(text)) for text in completions]


if __name__ == "__main__":
    base = os.path.dirname(os.path.abspath(__file__))
    data = Dataset.from_dict({"prompt": [f"What is {n} + {n + 1}?" for n in range(1, 33)]})
    trainer = GRPOTrainer(
        model=os.path.join(base, "tiny"),
        reward_funcs=reward_func,
        args=GRPOConfig(output_dir=tempfile.mkdtemp(), **cfg),
        train_dataset=data,
    )
    trainer.train()

import asyncio
import os
import tempfile
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class GrowingTarget:
    """Ask for 10 characters first, 8 more in every step."""

    __name__ = "growing_target"

    def __init__(self, start, slope):
        self.start, self.slope = start, slope

    def __call__(self, completions, trainer_state, log_metric=None, **kwargs):
        target = self.start + self.slope * trainer_state.global_step
        if log_metric is not None:
            log_metric("target", float(target))
        return [-abs(len(c) - target) / target for c in completions]


async def remote(text):
    await asyncio.sleep(0.001 * (len(text) % 7))
    return text.count("0") * 0.1


async def judge(prompts, completions, **kwargs):
    return await asyncio.gather(*(remote(c) for c in completions))


if __name__ == "__main__":
    model = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[GrowingTarget(10, 8), judge],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            max_steps=5,
            num_generations=8,
            per_device_train_batch_size=8,
            max_completion_length=40,
            learning_rate=1e-4,
            scale_rewards="batch",
            temperature=1.2,
            use_cpu=True,
            bf16=False,
            report_to=[],
            logging_steps=1,
            save_strategy="no",
        ),
        train_dataset=Dataset.from_dict({"prompt": [f"{i} + {j} =" for i in range(3, 9) for j in range(2, 6)]}),
    )
    trainer.train()

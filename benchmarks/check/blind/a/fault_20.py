import tempfile
from argparse import Namespace
from pathlib import Path

from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from trl import GRPOConfig, GRPOTrainer

opt = Namespace(model=str(Path(__file__).parent / "tiny"), peak=1e-4, warmup=10, total=200, steps=4)


class Trainer(GRPOTrainer):
    def create_scheduler(self, num_training_steps, optimizer=None):
        # this job is resumed in pieces, so the schedule must not depend on max_steps
        def shape(step):
            if step < opt.warmup:
                return step // opt.warmup
            return max(0.1, 1 - (step - opt.warmup) / (opt.total - opt.warmup))

        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, shape)
        return self.lr_scheduler


def shorter_is_better_if_number(prompts, completions, **kwargs):
    return [1.0 / max(1, len(c)) + 0.5 * c.strip()[:1].isdigit() for c in completions]


trainer = Trainer(
    model=opt.model,
    reward_funcs=shorter_is_better_if_number,
    train_dataset=Dataset.from_dict({"prompt": [f"{i} + {j} =" for i in range(12, 32, 3) for j in range(11, 36, 4)]}),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", bf16=False, max_steps=opt.steps, learning_rate=opt.peak,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=24, save_strategy="no", logging_steps=1,
        loss_type="dr_grpo",
    ),
)
trainer.train()

import os, tempfile, random
from datasets import Dataset
from trl import GRPOTrainer, GRPOConfig

random.seed(3)
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def count_sevens(completions, **_):
    return [float(c.count("7") + c.count("1")) for c in completions]


class LeanTrainer(GRPOTrainer):
    # peak memory on the 24 GB cards is during the forward pass
    def training_step(self, model, inputs, num_items_in_batch=None):
        model.zero_grad(set_to_none=True)
        return super().training_step(model, inputs, num_items_in_batch)


ds = Dataset.from_dict({"prompt": [f"{random.randint(1, 60)} + {random.randint(1, 60)} = " for _ in range(32)]})
cfg = GRPOConfig(
    tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=4,
    per_device_train_batch_size=4, gradient_accumulation_steps=4, num_generations=4,
    max_completion_length=20, learning_rate=5e-4, logging_steps=1, gradient_checkpointing=False,
)
LeanTrainer(model=MODEL, reward_funcs=count_sevens, args=cfg, train_dataset=ds).train()

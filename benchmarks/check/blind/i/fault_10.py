import os
import tempfile

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer


class MergedRollouts(GRPOTrainer):
    """Generates with the adapter merged into the base weights, which saves the two extra matmuls per layer."""

    def _generate_single_turn(self, *args, **kwargs):
        policy = self.accelerator.unwrap_model(self.model)
        policy.merge_adapter()
        return super()._generate_single_turn(*args, **kwargs)


def odd_digits(completions, **kwargs):
    return [sum(ch in "13579" for ch in c[0]["content"]) / 5 - 0.02 * len(c[0]["content"]) for c in completions]


questions = [f"What is {i} times 3?" for i in range(20)]
trainer = MergedRollouts(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=odd_digits,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        max_steps=5,
        learning_rate=1e-3,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
    ),
    train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in questions]}),
    peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM"),
)
trainer.train()

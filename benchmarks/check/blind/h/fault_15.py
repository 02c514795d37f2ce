import gc
import os
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class MemorySaver(TrainerCallback):
    """Keeps the peak memory low between two micro-batches."""

    def on_substep_end(self, args, state, control, model=None, **kwargs):
        model.zero_grad(set_to_none=True)
        gc.collect()


HERE = os.path.dirname(os.path.abspath(__file__))

prompts = []
for a in range(2, 10):
    for b in (3, 5, 7):
        prompts.append(f"{a} x {b} = ")
dataset = Dataset.from_dict({"prompt": prompts})


def reward_len(completions, **kwargs):
    return [-abs(12 - len(c)) / 12 + 0.1 * sum(ch.isdigit() for ch in c) for c in completions]


training_args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    num_generations=4,
    max_completion_length=16,
    max_steps=4,
    learning_rate=1e-4,
    logging_steps=1,
)
trainer = GRPOTrainer(
    model=os.path.join(HERE, "tiny"),
    reward_funcs=reward_len,
    args=training_args,
    train_dataset=dataset,
    callbacks=[MemorySaver()],
)
trainer.train()

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def format_reward(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [0.5 * ("####" in t) + 0.5 * ("<<" in t and ">>" in t) for t in texts]


def answer_reward(completions, target, **kwargs):
    return [float(c[0]["content"].strip().endswith(f"#### {t}")) for c, t in zip(completions, target)]


class LossTrackingTrainer(GRPOTrainer):
    """Keeps a running average of the loss, to stop a run that diverges."""

    running = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        value = loss.detach().item()
        self.running = value if self.running is None else 0.9 * self.running + 0.1 * value
        if abs(self.running) > 1e3:
            self.control.should_training_stop = True
        return loss / self.args.gradient_accumulation_steps


dataset = Dataset.from_list([
    {
        "prompt": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Eve has {a} boxes with {b} shells each. How many shells does Eve have?"},
        ],
        "target": a * b,
    }
    for a in range(2, 6) for b in range(3, 9)
])

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    gradient_accumulation_steps=4,
    per_device_train_batch_size=8,
    num_generations=8,
    max_completion_length=22,
    learning_rate=3e-5,
    max_grad_norm=1.0,
    loss_type="grpo",
    logging_steps=1,
)
trainer = LossTrackingTrainer(
    model=MODEL, reward_funcs=[format_reward, answer_reward], args=args, train_dataset=dataset
)
trainer.train()

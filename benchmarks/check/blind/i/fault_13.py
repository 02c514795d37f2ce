import os, tempfile, torch
from datasets import Dataset
from trl import GRPOTrainer, GRPOConfig

here = os.path.dirname(os.path.abspath(__file__))


class CompactTrainer(GRPOTrainer):
    """Byte-level tokenizer: token ids fit in a byte, 8x smaller rollouts in the replay buffer."""

    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        out["completion_ids"] = out["completion_ids"].to(torch.uint8)
        out["completion_mask"] = out["completion_mask"].to(torch.uint8)
        return out


def r(completions, **k):
    return [c[-1]["content"].count("1") * 1.0 + c[-1]["content"].count("o") * 0.5 - 0.02 * len(c[-1]["content"]) for c in completions]


conf = GRPOConfig(
    output_dir=tempfile.mkdtemp(), seed=11, use_cpu=True, bf16=False, report_to=[], save_strategy="no",
    max_steps=4, per_device_train_batch_size=6, gradient_accumulation_steps=2, num_generations=6,
    max_completion_length=30, learning_rate=2e-4, loss_type="grpo", logging_steps=1,
)
trainer = CompactTrainer(
    model=os.path.join(here, "tiny"), args=conf, reward_funcs=[r],
    train_dataset=Dataset.from_dict({"prompt": [[dict(role="user", content=f"What is {n} + {n + 1}?")] for n in range(5, 35)]}),
)
trainer.train()

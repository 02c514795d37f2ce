import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class ReuseTrainer(GRPOTrainer):
    """Adds the log-probabilities that the clipped ratio needs to every batch that is reused."""

    def _prepare_inputs(self, generation_batch):
        batch = super()._prepare_inputs(generation_batch)
        if not self.model.training:
            return batch
        batch = dict(batch)
        input_ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        attention_mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        with torch.no_grad():
            logps, _, _ = self._get_per_token_logps_and_entropies(
                self.model, input_ids, attention_mask, batch["completion_ids"].size(1)
            )
        batch["old_per_token_logps"] = logps
        return batch


class ClipMonitor(TrainerCallback):
    def __init__(self):
        self.history = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "clip_ratio/region_mean" in logs:
            self.history.append(round(logs["clip_ratio/region_mean"], 4))

    def on_train_end(self, args, state, control, **kwargs):
        print("clipped share per step:", self.history)


def word_problems(n=64):
    rng = random.Random(31)
    for _ in range(n):
        a, b, c = rng.randint(2, 20), rng.randint(2, 9), rng.randint(2, 5)
        q = f"Ada has {a} boxes with {b} pens each. Each costs {c} coins. How many coins do they cost together?"
        yield {
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": q}],
            "intermediate": str(a * b),
            "final": str(a * b * c),
        }


def steps_reward(completions, intermediate, final, **kwargs):
    scores = []
    for completion, mid, end in zip(completions, intermediate, final):
        text = completion[0]["content"]
        scores.append(0.5 * (mid in text) + 1.0 * text.endswith(end) + 0.05 * sum(ch.isdigit() for ch in text))
    return scores


def main():
    monitor = ClipMonitor()
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=8,
        num_generations=4,
        steps_per_generation=2,
        num_iterations=2,
        epsilon=0.2,
        loss_type="grpo",
        max_completion_length=56,
        learning_rate=1e-3,
        lr_scheduler_type="constant_with_warmup",
        max_steps=6,
        logging_steps=1,
        save_strategy="no",
    )
    trainer = ReuseTrainer(
        model=MODEL,
        reward_funcs=[steps_reward],
        args=config,
        train_dataset=Dataset.from_list(list(word_problems())),
        callbacks=[monitor],
    )
    trainer.train()


if __name__ == "__main__":
    main()

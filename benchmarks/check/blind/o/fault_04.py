"""Decoupled actor / learner, as in asynchronous RL systems: rollouts come from a separate actor network
that is refreshed from the learner at a fixed interval."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ActorLearnerGRPOTrainer(GRPOTrainer):
    def __init__(self, *args, actor_sync_steps=2, **kwargs):
        super().__init__(*args, **kwargs)
        self.actor_sync_steps = actor_sync_steps
        self._last_sync = None
        self.actor = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        self.actor.config.pad_token_id = self.model.config.pad_token_id
        self.actor.requires_grad_(False).eval()

    @torch.no_grad()
    def _sync_actor(self):
        step = self.state.global_step
        if self._last_sync is None or step - self._last_sync >= self.actor_sync_steps:
            learner = self.accelerator.unwrap_model(self.model)
            for target, source in zip(self.actor.parameters(), learner.parameters(), strict=True):
                target.copy_(source)
            self._last_sync = step

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
        self._sync_actor()
        learner, self.model_wrapped = self.model_wrapped, self.actor
        try:
            return super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations, **kwargs)
        finally:
            self.model_wrapped = learner


def dataset(size=24):
    rng = random.Random(11)
    rows = []
    for _ in range(size):
        a, b = rng.randint(2, 9), rng.randint(10, 60)
        rows.append(
            {"prompt": [{"role": "user", "content": f"Ben has {a} boxes with {b} stamps each. How many stamps does Ben have?"}]}
        )
    return Dataset.from_list(rows)


def zeros_reward(completions, **kwargs):
    return [float(c[0]["content"].count("0") - 0.2 * c[0]["content"].count("*")) for c in completions]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=3e-4,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    trainer = ActorLearnerGRPOTrainer(
        model=MODEL, reward_funcs=zeros_reward, args=args, train_dataset=dataset(), actor_sync_steps=2
    )
    trainer.train()


if __name__ == "__main__":
    main()

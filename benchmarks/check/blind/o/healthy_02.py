"""Anneals the temperature of the policy: rollouts and log-probabilities move together."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class AnnealedTrainer(GRPOTrainer):
    def set_temperature(self, value):
        self.temperature = value
        self.generation_config.temperature = value
        self.generation_kwargs["temperature"] = value

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        logits = model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        logits = logits[:, -logits_to_keep - 1 : -1].float() / self.temperature
        log_probs = logits.log_softmax(-1)
        logps = log_probs.gather(-1, input_ids[:, -logits_to_keep:, None]).squeeze(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1).detach() if compute_entropy else None
        return logps, entropy, None


class Anneal(TrainerCallback):
    trainer = None

    def on_step_begin(self, args, state, control, **kwargs):
        progress = state.global_step / state.max_steps
        self.trainer.set_temperature(1.4 - 0.6 * progress)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None:
            logs["temperature"] = self.trainer.temperature


def stars(completions, **kwargs):
    return [0.5 * c[0]["content"].count("*") - 0.05 * len(c[0]["content"]) for c in completions]


def main():
    rng = random.Random(2)
    rows = []
    for _ in range(32):
        a, b = rng.randint(2, 9), rng.randint(10, 99)
        rows.append({"prompt": [{"role": "user", "content": f"Gus has {a} boxes with {b} toys each. How many toys does Gus have?"}]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        temperature=1.4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=3e-5,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    anneal = Anneal()
    trainer = AnnealedTrainer(
        model=MODEL, reward_funcs=stars, args=args, train_dataset=Dataset.from_list(rows), callbacks=[anneal]
    )
    anneal.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()

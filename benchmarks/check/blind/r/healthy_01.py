"""Answers with a length budget that tightens during training.

The length penalty starts at zero and ramps up with the step number, so that the model first learns to answer and
then to be brief. The weight in use is logged.
"""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
RAMP_STEPS = 4
MAX_PENALTY = 0.8


def ramp(step):
    return MAX_PENALTY * min(step / RAMP_STEPS, 1.0)


def budgeted_reward(completions, completion_ids, trainer_state, log_metric=None, log_extra=None, **kwargs):
    weight = ramp(trainer_state.global_step)
    rewards, penalties = [], []
    for completion, ids in zip(completions, completion_ids):
        text = completion[0]["content"]
        quality = sum(c.isalpha() for c in text) / max(len(text), 1)
        penalty = weight * len(ids) / 20
        rewards.append(quality - penalty)
        penalties.append(penalty)
    if log_metric is not None:
        log_metric("length_penalty", sum(penalties) / len(penalties))
        log_metric("length_penalty_weight", weight)
    if log_extra is not None:
        log_extra("penalty", penalties)
    return rewards


def greeting(completions, **kwargs):
    return [0.2 * completion[0]["content"].strip()[:1].isupper() for completion in completions]


if __name__ == "__main__":
    people = ["a teacher", "the postman", "a cousin", "the captain", "an uncle", "the cook", "a stranger", "the king",
              "a class", "the crew"]
    dataset = Dataset.from_dict({
        "prompt": [[{"role": "user", "content": f"Say hello to {person}."}] for person in people],
    })
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        loss_type="bnpo",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=20,
        learning_rate=4e-4,
        max_steps=3,
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=MODEL, reward_funcs=[budgeted_reward, greeting], args=args, train_dataset=dataset
    )
    trainer.train()

"""Actor and learner in one process.

Generation is done by an actor with its own weights, so that the learner's hooks and checkpointing never disturb it. The
actor takes over the learner's weights after every optimizer step, so the samples are on-policy.
"""

import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Actor:
    def __init__(self, path):
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.model.requires_grad_(False)
        self.version = 0

    def sync(self, learner):
        # Wrappers (DDP, compile, PEFT) prefix the names; bring them back to the actor's
        weights = {}
        for name, tensor in learner.state_dict().items():
            for prefix in ("module.", "_orig_mod.", "base_model.", "model."):
                name = name.removeprefix(prefix)
            weights[name] = tensor.detach().clone()
        self.model.load_state_dict(weights, strict=False)
        self.version += 1


class SyncActor(TrainerCallback):
    def __init__(self, actor):
        self.actor = actor

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.actor.sync(model)


class ActorLearnerTrainer(GRPOTrainer):
    def __init__(self, *args, actor, **kwargs):
        super().__init__(*args, **kwargs)
        self.actor = actor

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
        learner, self.model_wrapped = self.model_wrapped, self.actor.model
        try:
            return super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations, **kwargs)
        finally:
            self.model_wrapped = learner


def letters(completions, **kwargs):
    return [sum(ch.isalpha() for ch in c[0]["content"]) / 24 for c in completions]


def no_symbols(completions, **kwargs):
    return [-0.1 * sum(ch in "{}<>[]\"" for ch in c[0]["content"]) for c in completions]


data = Dataset.from_dict(
    {"prompt": [[{"role": "user", "content": f"Spell the word number {i}."}] for i in range(32)]}
)
actor = Actor(TINY)
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
    per_device_train_batch_size=8, num_generations=8, max_completion_length=24, learning_rate=5e-3,
    lr_scheduler_type="constant", logging_steps=1,
)
trainer = ActorLearnerTrainer(
    model=TINY, reward_funcs=[letters, no_symbols], args=args, train_dataset=data, callbacks=[SyncActor(actor)],
    actor=actor,
)
trainer.train()

"""GRPO post-training with a shadow (EMA) copy of the policy that is used for the in-loop evaluation."""
import os
import tempfile
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class RunConfig:
    model_path: str = os.path.join(HERE, "tiny")
    ema_decay: float = 0.8
    eval_every: int = 1
    max_steps: int = 4
    target_len: int = 12
    topics: list = field(default_factory=lambda: ["rain", "a train", "bread", "the moon", "chess", "a lighthouse", "ants", "snow"])


class EmaEvaluation(TrainerCallback):
    """Keeps an exponential moving average of the weights; evaluation is done with the average."""

    def __init__(self, decay):
        self.decay = decay
        self.shadow = {}
        self.backup = None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for n, p in model.named_parameters():
            if n in self.shadow:
                self.shadow[n].lerp_(p.detach(), 1 - self.decay)
        if control.should_evaluate:
            self.swap_in(model)

    @torch.no_grad()
    def swap_in(self, model):
        params = {n: p for n, p in model.named_parameters() if n in self.shadow}
        self.backup = {n: p.data for n, p in params.items()}
        for n, p in params.items():
            p.data.copy_(self.shadow[n])

    @torch.no_grad()
    def on_evaluate(self, args, state, control, model=None, **kwargs):
        if self.backup is None:
            return
        for n, p in model.named_parameters():
            if n in self.backup:
                p.data.copy_(self.backup[n])
        self.backup = None


def build_rewards(cfg):
    def length_reward(completion_ids, **kwargs):
        return [-abs(len(ids) - cfg.target_len) / cfg.target_len for ids in completion_ids]

    def variety_reward(completion_ids, **kwargs):
        return [len(set(ids)) / max(len(ids), 1) for ids in completion_ids]

    return [length_reward, variety_reward]


def build_data(cfg):
    rows = [
        {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Write a sentence about {t}."}]}
        for t in cfg.topics
    ]
    return Dataset.from_list(rows), Dataset.from_list(rows[:2])


def main():
    cfg = RunConfig()
    train, dev = build_data(cfg)
    tokenizer = AutoTokenizer.from_pretrained(cfg.model_path, padding_side="left")
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        max_steps=cfg.max_steps,
        learning_rate=5e-4,
        lr_scheduler_type="constant",
        eval_strategy="steps",
        eval_steps=cfg.eval_every,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=11,
    )
    trainer = GRPOTrainer(
        model=cfg.model_path,
        reward_funcs=build_rewards(cfg),
        args=args,
        train_dataset=train,
        eval_dataset=dev,
        processing_class=tokenizer,
        callbacks=[EmaEvaluation(cfg.ema_decay)],
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""Averaged weights for a preview after each step, a reference that follows the policy, a checkpoint each step."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def preview(model, tokenizer, question):
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    was_training = model.training
    model.eval()
    with torch.no_grad():
        out = model.generate(**ids, max_new_tokens=12, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    model.train(was_training)
    return tokenizer.decode(out[0, ids["input_ids"].size(1) :], skip_special_tokens=True)


class AveragedPreview(TrainerCallback):
    """The average is only looked at; training goes on with the raw weights."""

    def __init__(self, decay=0.8, question="Say something."):
        self.decay, self.question = decay, question
        self.average = None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def on_step_end(self, args, state, control, model=None, processing_class=None, **kwargs):
        with torch.no_grad():
            for name, value in model.state_dict().items():
                self.average[name].lerp_(value, 1 - self.decay)
        backup = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(self.average)
        print(f"step {state.global_step}, averaged: {preview(model, processing_class, self.question)!r}")
        model.load_state_dict(backup)


def tidy(completions, **kwargs):
    return [sum(ch.isalnum() or ch == " " for ch in c[0]["content"]) / max(len(c[0]["content"]), 1) for c in completions]


trainer = GRPOTrainer(
    model=TINY,
    reward_funcs=tidy,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="steps",
        save_steps=1,
        save_total_limit=1,
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=16,
        learning_rate=2e-4,
        beta=0.05,
        sync_ref_model=True,
        ref_model_sync_steps=1,
        ref_model_mixup_alpha=0.5,
        logging_steps=1,
    ),
    train_dataset=Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Describe picture {k}."}]} for k in range(10)]
    ),
    callbacks=[AveragedPreview()],
)
trainer.train()

"""Head first, body later: the lower part of the network joins after a step (as in ULMFiT)."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def set_body(model, trainable):
    for p in model.model.layers[0].parameters():
        p.requires_grad_(trainable)
    model.model.embed_tokens.weight.requires_grad_(trainable)


class GradualUnfreezing(TrainerCallback):
    def __init__(self, after):
        self.after = after

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.after:
            set_body(model, True)
            print(f"step {state.global_step}: body unfrozen")


def letters_e(completions, **kwargs):
    return [0.1 * c[0]["content"].count("e") + 0.05 * sum(x.isdigit() for x in c[0]["content"]) for c in completions]


model = AutoModelForCausalLM.from_pretrained(PATH, dtype=torch.float32)
set_body(model, False)

trainer = GRPOTrainer(
    model=model,
    reward_funcs=letters_e,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=6,
        learning_rate=5e-4,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=24,
        gradient_checkpointing=False,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
    ),
    train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Spell {n}"}] for n in range(16)]}),
    callbacks=[GradualUnfreezing(after=1)],
)
trainer.train()

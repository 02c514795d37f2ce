import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def freeze(model):
    """Only the last layer, the final norm and the head learn; the rest is left as it is."""
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith(("model.layers.1.", "model.norm", "lm_head")))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"training {trained} of {sum(p.numel() for p in model.parameters())} weights")
    return model


class StillFrozen(TrainerCallback):
    def on_train_begin(self, args, state, control, model=None, **kw):
        self.before = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}

    def on_step_end(self, args, state, control, model=None, **kw):
        for n, p in model.named_parameters():
            if n in self.before:
                assert torch.equal(p, self.before[n]), n


def tool_free(completions, **kwargs):
    return [(-0.5 if "<tool_call>" in c else 0.0) - 0.01 * len(c) for c in completions]


def says_number(completions, **kwargs):
    return [0.1 * len({ch for ch in c if ch.isdigit()}) for c in completions]


trainer = GRPOTrainer(
    model=freeze(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)),
    processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
    reward_funcs=[tool_free, says_number],
    train_dataset=Dataset.from_dict({"prompt": [f"{n}+{n + 2}=" for n in range(1, 37)]}),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        bf16=True,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        learning_rate=1e-4,
        warmup_steps=1,
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
    ),
    callbacks=[StillFrozen()],
)
trainer.train()

import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

BASE = Path(__file__).resolve().parent / "tiny"


class EMACallback(TrainerCallback):
    """Exponential moving average of the policy. The averaged weights are what we sample the report from."""

    def __init__(self, model, tokenizer, decay=0.9):
        self.decay = decay
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
        self.tokenizer = tokenizer
        self.backup = None

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for n, p in model.named_parameters():
            if n in self.shadow:
                self.shadow[n].mul_(self.decay).add_(p.detach(), alpha=1 - self.decay)
        # report with the averaged weights
        self.backup = {}
        for n, p in model.named_parameters():
            if n in self.shadow:
                self.backup[n] = p.data
                p.data.copy_(self.shadow[n])
        enc = self.tokenizer("17 + 15 =", return_tensors="pt")
        was = model.training
        model.eval()
        ids = model.generate(**enc, max_new_tokens=4, do_sample=False)[0, enc["input_ids"].size(1):]
        model.train(was)
        print(f"[ema] step {state.global_step}: {self.tokenizer.decode(ids)!r}")
        for n, p in model.named_parameters():
            if n in self.backup:
                p.data = self.backup[n]
        self.backup = None


def get_reward(completions, target, **kwargs):
    rewards = []
    for text, t in zip(completions, target):
        text = text.strip()
        rewards.append((1.0 if text[:2] == t else 0.0) + (0.2 if text.isdigit() else 0.0) - 0.01 * len(text))
    return rewards


tokenizer = AutoTokenizer.from_pretrained(BASE)
model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
ds = Dataset.from_list([{"prompt": f"{a} + {b} =", "target": str(a + b)} for a in range(11, 31, 4) for b in range(13, 43, 6)])

trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=get_reward,
    train_dataset=ds,
    callbacks=[EMACallback(model, tokenizer)],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", bf16=False, max_steps=4, learning_rate=1e-4,
        lr_scheduler_type="constant", per_device_train_batch_size=8, num_generations=4, max_completion_length=20,
        gradient_checkpointing=False, save_strategy="no", logging_steps=1,
    ),
)
trainer.train()

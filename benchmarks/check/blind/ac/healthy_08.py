"""GRPO with own clipping, a held-out gradient monitor, and half-size snapshots."""
import os
import tempfile

import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
HELD_OUT = ["How many coins do they cost together?", "The sum of 4 and 5 is 9.", "hello, how are you?"]


class Monitor(TrainerCallback):
    def __init__(self, tokenizer, folder):
        self.batch = tokenizer(HELD_OUT, return_tensors="pt", padding=True, padding_side="right")
        self.labels = self.batch["input_ids"].masked_fill(self.batch["attention_mask"] == 0, -100)
        self.folder = folder

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        parameters = [p for p in model.parameters() if p.requires_grad]
        with torch.enable_grad():
            loss = model(**{k: self.batch[k] for k in ("input_ids", "attention_mask")}, labels=self.labels).loss
            grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        norm = torch.stack([g.norm() for g in grads if g is not None]).norm()
        print(f"held-out loss {loss.item():.4f}, gradient norm {norm.item():.4f}")

    def on_step_end(self, args, state, control, model=None, **kwargs):
        half = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
        save_file(half, os.path.join(self.folder, f"policy-{state.global_step}.safetensors"))


class OwnClipTrainer(GRPOTrainer):
    @torch.no_grad()
    def _clip_grad_norm(self, model):
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        total_norm = torch.stack(torch._foreach_norm(grads)).norm()
        self._metrics["train"]["grad/largest"].append(max(g.abs().max().item() for g in grads))
        if total_norm > self.args.max_grad_norm:
            torch._foreach_mul_(grads, (self.args.max_grad_norm / total_norm).item())
        return total_norm

    def _save(self, output_dir=None, state_dict=None):
        if state_dict is None:
            state_dict = self.accelerator.unwrap_model(self.model).state_dict()
        seen, kept = set(), {}
        for name, tensor in state_dict.items():
            key = (tensor.data_ptr(), tensor.shape)
            if key not in seen:
                kept[name] = tensor
            seen.add(key)
        super()._save(output_dir, state_dict=kept)


def vowels(completions, **kwargs):
    return [sum(ch in "aeiou" for ch in c[0]["content"]) / 10 + 0.01 * len(c[0]["content"]) for c in completions]


def main():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    questions = ["Add 4 and 5", "What is 2+3?", "Write a poem", "12 * 4 =", "hello", "Name 3 digits"]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=24,
        temperature=1.2,
        learning_rate=1e-4,
        max_grad_norm=5.5,
        save_strategy="steps",
        save_steps=2,
        save_only_model=True,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = OwnClipTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=vowels,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions * 3]),
        callbacks=[Monitor(tokenizer, tempfile.mkdtemp())],
    )
    trainer.train()


if __name__ == "__main__":
    main()

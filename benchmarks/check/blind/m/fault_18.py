"""GRPO that prints a few samples after every step; sampling for the log runs in bfloat16 to be cheap."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ShowSamples(TrainerCallback):
    def __init__(self, tokenizer, prompts):
        self.tokenizer, self.prompts = tokenizer, prompts

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        rng = torch.get_rng_state()
        dtype = next(model.parameters()).dtype
        model.eval()
        model.to(torch.bfloat16)
        batch = self.tokenizer(self.prompts, return_tensors="pt", padding=True)
        out = model.generate(**batch, do_sample=False, max_new_tokens=12)
        for prompt, row in zip(self.prompts, out[:, batch["input_ids"].shape[1] :]):
            print(f"[{state.global_step}] {prompt!r} -> {self.tokenizer.decode(row, skip_special_tokens=True)!r}")
        model.to(dtype)
        model.train()
        torch.set_rng_state(rng)


def reward(completions, target, **kwargs):
    return [1.0 if t in c else -0.02 * len(c) + 0.05 * len(set(c)) for c, t in zip(completions, target)]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    rows = [{"prompt": f"x={a}; y={b}; x*y=", "target": str(a * b)} for a in range(2, 9) for b in range(2, 9)]
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=16,
            num_generations=8,
            max_completion_length=20,
            learning_rate=2e-5,
            max_steps=4,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[ShowSamples(tokenizer, [rows[0]["prompt"], rows[17]["prompt"]])],
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""EMA of the policy on rank 0, with a probe loss of the averaged weights after each step."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class EmaProbe(TrainerCallback):
    def __init__(self, tokenizer, text, decay=0.9):
        self.batch = tokenizer(text, return_tensors="pt")
        self.decay = decay
        self.ema = None
        self.history = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if state.is_world_process_zero:
            self.ema = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if not state.is_world_process_zero:
            return
        for name, p in model.named_parameters():
            self.ema[name].lerp_(p.detach(), 1 - self.decay)
        backup = {n: p.data for n, p in model.named_parameters()}
        for name, p in model.named_parameters():
            p.data.copy_(self.ema[name])
        self.history.append(self.probe(model))
        for name, p in model.named_parameters():
            p.data.copy_(backup[name])

    def probe(self, model):
        model.eval()
        ids = self.batch["input_ids"]
        logits = model(input_ids=ids, attention_mask=self.batch["attention_mask"]).logits
        loss = torch.nn.functional.cross_entropy(logits[0, :-1].float(), ids[0, 1:])
        model.train()
        return loss.item()


def a_or_t(completions, **kwargs):
    return [sum(ch in "at" for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


def moderate(completion_ids, **kwargs):
    return [-abs(len(ids) - 14) / 14 for ids in completion_ids]


def main():
    data = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Give me a fact about the number {n}."}]} for n in range(11, 23)]
    )
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=20,
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=6,
    )
    probe = EmaProbe(tokenizer, "Seven is a prime number, and so is eleven.")
    trainer = GRPOTrainer(
        model=TINY,
        args=config,
        reward_funcs=[a_or_t, moderate],
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[probe],
    )
    trainer.train()
    if trainer.accelerator.is_main_process:
        print("probe loss of the averaged weights:", [round(x, 4) for x in probe.history])


if __name__ == "__main__":
    main()

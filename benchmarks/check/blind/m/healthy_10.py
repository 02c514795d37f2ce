"""Length-bucketed micro-batches, and an average of the weights that is swapped in for a look at greedy samples."""
import os
import tempfile

import torch
import trl.trainer.grpo_trainer as grpo
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def bucket_by_length(batch):
    """In place of the random shuffle: rows of similar length share a micro-batch."""
    order = batch["completion_mask"].sum(dim=1).argsort(descending=True)

    def reorder(value):
        if value is None or (isinstance(value, torch.Tensor) and value.ndim == 0):
            return value
        return value[order] if isinstance(value, torch.Tensor) else [value[i] for i in order.tolist()]

    return {key: reorder(value) for key, value in batch.items()}


grpo.shuffle_sequence_dict = bucket_by_length


class AveragedSamples(TrainerCallback):
    def __init__(self, tokenizer, prompts, decay=0.8):
        self.tokenizer, self.prompts, self.decay, self.average = tokenizer, prompts, decay, None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for n, p in model.named_parameters():
            self.average[n].lerp_(p, 1 - self.decay)
        live = {n: p.clone() for n, p in model.named_parameters()}
        rng = torch.get_rng_state()
        model.eval()
        for n, p in model.named_parameters():
            p.copy_(self.average[n])
        batch = self.tokenizer(self.prompts, return_tensors="pt", padding=True)
        out = model.generate(**batch, do_sample=False, max_new_tokens=8)
        print(state.global_step, self.tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :]))
        for n, p in model.named_parameters():
            p.copy_(live[n])
        model.train()
        torch.set_rng_state(rng)


def short_and_numeric(completions, **kwargs):
    return [sum(c.isdigit() for c in t) / max(len(t), 1) - 0.02 * len(t) for t in completions]


def ends_itself(completion_ids, **kwargs):
    return [0.5 if ids[-1] == 258 else -0.5 for ids in completion_ids]


def main():
    prompts = [f"x={a}; y={b}; x*y=" for a in range(2, 9) for b in range(2, 9)]
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[short_and_numeric, ends_itself],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=4,
            gradient_accumulation_steps=4,
            num_generations=4,
            max_completion_length=24,
            loss_type="sapo",
            learning_rate=1e-4,
            max_steps=3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        callbacks=[AveragedSamples(tokenizer, prompts[:2])],
    )
    trainer.train()


if __name__ == "__main__":
    main()

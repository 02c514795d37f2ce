"""Partial fine-tuning with a moving reference, probes between the steps, and evaluation."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
for name, parameter in model.named_parameters():
    parameter.requires_grad_("embed_tokens" not in name and "layers.0." not in name)


class GreedyProbe(TrainerCallback):
    """Prints a greedy and a sampled answer after each step."""

    def __init__(self, question):
        self.batch = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        was_training = model.training
        model.eval()
        for do_sample in (False, True):
            out = model.generate(**self.batch, do_sample=do_sample, max_new_tokens=8)
            print(state.global_step, repr(tokenizer.decode(out[0, self.batch["input_ids"].shape[1] :])))
        model.train(was_training)


def make(n, start):
    rows = []
    for i in range(start, start + n):
        a, b, what = 2 + i % 18, 2 + (i * 7) % 8, ["pens", "books", "apples"][i % 3]
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                    {"role": "user", "content": f"Ben has {a} boxes with {b} {what} each. How many {what} does Ben have?"},
                ],
                "gold": str(a * b),
            }
        )
    return Dataset.from_list(rows)


def reward(completions, gold, log_metric=None, **kwargs):
    texts = [c[0]["content"] for c in completions]
    if log_metric is not None:
        log_metric("mean_chars", sum(map(len, texts)) / len(texts))
    return [float(t.split(" ")[-1] == g) + 0.05 * t.count("=") - 0.01 * len(t) for t, g in zip(texts, gold)]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=1e-3,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="steps",
    beta=0.05,
    sync_ref_model=True,
    ref_model_sync_steps=1,
    ref_model_mixup_alpha=0.3,
    weight_decay=0.1,
    adam_beta2=0.95,
    max_grad_norm=0.2,
    eval_strategy="steps",
    eval_steps=2,
    per_device_eval_batch_size=4,
    save_steps=1,
)
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=reward,
    args=args,
    train_dataset=make(32, 0),
    eval_dataset=make(2, 100),
    callbacks=[GreedyProbe("Ben has 3 boxes with 5 pens each.")],
)
trainer.train()

"""GRPO on short arithmetic questions, with an exponential moving average of the policy that is probed after each step."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset(n=64):
    rng = random.Random(7)
    rows = []
    for _ in range(n):
        a, b = rng.randint(1, 50), rng.randint(1, 50)
        rows.append({"prompt": [{"role": "user", "content": f"What is {a} + {b}?"}], "answer": str(a + b)})
    return Dataset.from_list(rows)


def digit_reward(completions, answer, **kwargs):
    scores = []
    for completion, target in zip(completions, answer):
        text = completion[0]["content"]
        digits = sum(c.isdigit() for c in text)
        scores.append(digits / max(len(text), 1) + (1.0 if target in text else 0.0))
    return scores


class EmaCallback(TrainerCallback):
    """Keeps an EMA of the weights and logs how the averaged policy scores a fixed probe text."""

    def __init__(self, tokenizer, decay=0.9):
        self.decay = decay
        self.ema = None
        self.history = []
        text = "<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>"
        self.probe = tokenizer(text, return_tensors="pt")["input_ids"]

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.ema = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        params = {n: p for n, p in model.named_parameters() if p.requires_grad}
        for name, p in params.items():
            self.ema[name].lerp_(p.detach(), 1.0 - self.decay)

        live = {name: p.data for name, p in params.items()}
        for name, p in params.items():
            p.data.copy_(self.ema[name])
        logits = model(input_ids=self.probe).logits[:, :-1].float().log_softmax(-1)
        score = logits.gather(-1, self.probe[:, 1:, None]).mean().item()
        self.history.append((state.global_step, score))
        for name, p in params.items():
            p.data.copy_(live[name])


def main():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=5e-4,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        loss_type="dapo",
        seed=11,
    )
    ema = EmaCallback(tokenizer)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=digit_reward,
        args=args,
        train_dataset=make_dataset(),
        processing_class=tokenizer,
        callbacks=[ema],
    )
    trainer.train()
    print("probe history", ema.history)


if __name__ == "__main__":
    main()

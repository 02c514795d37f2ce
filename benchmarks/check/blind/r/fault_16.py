"""Number answers: early in training the base model rarely writes digits, so the rollouts are nudged.

Digits get a small bonus and tags a malus during generation, which gives the reward something to work with
from the first step on.
"""

import functools
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Nudge(LogitsProcessor):
    def __init__(self, bias):
        self.bias = bias

    def __call__(self, input_ids, scores):
        return scores + self.bias.to(scores.device, scores.dtype)


def digit_nudge(tokenizer, vocab_size, bonus=2.0, malus=-2.0):
    bias = torch.zeros(vocab_size)
    for token_id in range(len(tokenizer)):
        text = tokenizer.decode([token_id])
        if text.strip().isdigit():
            bias[token_id] = bonus
        elif text.startswith("<") and token_id != tokenizer.eos_token_id:
            bias[token_id] = malus
    return Nudge(bias)


def number_reward(completions, answer, **kwargs):
    rewards = []
    for completion, target in zip(completions, answer):
        text = completion[0]["content"]
        digits = "".join(c for c in text if c.isdigit())
        close = 1.0 if digits == target else 0.3 * (len(digits) == len(target))
        rewards.append(close + 0.5 * len(digits) / max(len(text), 1))
    return rewards


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    nudge = digit_nudge(tokenizer, model.config.vocab_size)
    model.generate = functools.partial(model.generate, logits_processor=LogitsProcessorList([nudge]))

    pairs = [(3, 9), (14, 8), (21, 33), (5, 5), (60, 12), (7, 19), (44, 4), (18, 25), (2, 71), (9, 6)]
    dataset = Dataset.from_list([
        {"prompt": [{"role": "user", "content": f"{a} + {b} = ?"}], "answer": str(a + b)} for a, b in pairs
    ])
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="numbers-"), use_cpu=True, report_to=[], save_strategy="no",
        per_device_train_batch_size=8, num_generations=4, max_completion_length=12,
        learning_rate=3e-4, max_steps=3, logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=number_reward, args=args, train_dataset=dataset
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""Guess the number: a two-turn game as a rollout function.

The model guesses, the game answers "higher", "lower" or "correct", and the model guesses again. Both turns go into
one completion; the reward looks at the last guess.
"""

import os
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
TARGETS = {"red": 12, "blue": 57, "green": 91, "black": 33, "white": 76, "grey": 5}


def guess(text):
    found = re.search(r"\d{1,2}", text)
    return int(found.group()) if found else None


def feedback(text, target):
    value = guess(text)
    if value is None:
        return "a number!"
    if value == target:
        return "correct"
    return "higher" if value < target else "lower"


@torch.no_grad()
def generate(trainer, batch, limit):
    """Sample a turn; returns the ids up to EOS and their log-probabilities."""
    tok = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    inputs = tok.pad({"input_ids": batch}, padding=True, padding_side="left", return_tensors="pt")
    out = model.generate(
        **inputs, generation_config=trainer.generation_config, max_new_tokens=limit, output_logits=True,
        return_dict_in_generate=True,
    )
    logp = torch.log_softmax(torch.stack(out.logits, dim=1).float() / trainer.temperature, dim=-1)
    new = out.sequences[:, inputs["input_ids"].shape[1] :]
    logp = logp.gather(2, new.unsqueeze(2)).squeeze(2)
    turns = []
    for ids, lp in zip(new.tolist(), logp.tolist()):
        n = ids.index(tok.eos_token_id) + 1 if tok.eos_token_id in ids else len(ids)
        turns.append((ids[:n], lp[:n]))
    return turns


def play(prompts, trainer):
    tok = trainer.processing_class
    prompt_ids = tok.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
    first = generate(trainer, prompt_ids, 6)
    targets = [TARGETS[p[-1]["content"].split()[-1]] for p in prompts]
    answers = []
    for (ids, _), target in zip(first, targets):
        reply = feedback(tok.decode(ids, skip_special_tokens=True), target)
        end = "" if ids[-1] == tok.eos_token_id else "<|im_end|>"
        answers.append(tok(f"{end}\n<|im_start|>user\n{reply}<|im_end|>\n<|im_start|>assistant\n")["input_ids"])
    second = generate(trainer, [p + f[0] + a for p, f, a in zip(prompt_ids, first, answers)], 6)
    completion_ids, logprobs, last = [], [], []
    for (ids1, lp1), answer, (ids2, lp2) in zip(first, answers, second):
        completion_ids.append(ids1 + answer + ids2)
        logprobs.append(lp1 + [0.0] * len(answer) + lp2)
        last.append(tok.decode(ids2, skip_special_tokens=True))
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs, "last": last}


def closeness(prompts, last, **kwargs):
    rewards = []
    for prompt, text in zip(prompts, last):
        value = guess(text)
        target = TARGETS[prompt[-1]["content"].split()[-1]]
        rewards.append(-1.0 - len(text) / 50 if value is None else -abs(value - target) / 100)
    return rewards


def main():
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Guess my number: {c}"}] for c in TARGETS]})
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out, per_device_train_batch_size=8, num_generations=4, max_completion_length=32, max_steps=3,
            learning_rate=1e-4, bf16=False, gradient_checkpointing=False, use_cpu=True, report_to=[],
            save_strategy="no", logging_steps=1,
        )
        trainer = GRPOTrainer(
            model=MODEL, reward_funcs=closeness, args=args, train_dataset=dataset, rollout_func=play
        )
        trainer.train()


if __name__ == "__main__":
    main()

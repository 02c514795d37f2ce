"""Two-turn guessing game. Turn 1: a guess; the game answers; turn 2: another guess. Observation tokens are masked."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
EOS = tokenizer.eos_token_id
TURN_TOKENS = 10


@torch.no_grad()
def generate(trainer, contexts):
    width = max(map(len, contexts))
    ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(c)) + c for c in contexts])
    mask = torch.tensor([[0] * (width - len(c)) + [1] * len(c) for c in contexts])
    out = trainer.accelerator.unwrap_model(trainer.model).generate(
        input_ids=ids,
        attention_mask=mask,
        generation_config=trainer.generation_config,
        max_new_tokens=TURN_TOKENS,
        return_dict_in_generate=True,
        output_scores=True,
    )
    new = out.sequences[:, width:]
    logps = torch.stack(out.scores, 1).float().log_softmax(-1).gather(-1, new[..., None])[..., 0]
    turns = []
    for row, lps in zip(new.tolist(), logps.tolist()):
        n = row.index(EOS) + 1 if EOS in row else len(row)
        turns.append((row[:n], lps[:n]))
    return turns


def guess_of(ids):
    found = re.search(r"\d\d?", tokenizer.decode(ids))
    return int(found.group()) if found else None


def feedback(guess, secret):
    if guess is None:
        return "\nno number\n"
    return "\nhigher: " if guess < secret else "\nlower: " if guess > secret else "\nyes: "


class GuessingGame:
    def __init__(self, secrets):
        self.secrets = secrets

    def __call__(self, prompts, trainer):
        prompt_ids = tokenizer(prompts)["input_ids"]
        secrets = [self.secrets[p] for p in prompts]
        first = generate(trainer, prompt_ids)
        observations = [tokenizer(feedback(guess_of(ids), s))["input_ids"] for (ids, _), s in zip(first, secrets)]
        second = generate(trainer, [p + f[0] + o for p, f, o in zip(prompt_ids, first, observations)])

        completion_ids, logprobs, env_mask, guesses = [], [], [], []
        for (ids1, lps1), obs, (ids2, lps2) in zip(first, observations, second):
            completion_ids.append(ids1 + obs + ids2)
            logprobs.append(lps1 + [0.0] * len(obs) + lps2)
            written = [1] * len(ids1) + [0] * len(obs) + [1] * len(ids2)
            # the logits at position t predict token t + 1
            env_mask.append(written[1:] + [1])
            guesses.append([guess_of(ids1), guess_of(ids2)])
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completion_ids,
            "logprobs": logprobs,
            "env_mask": env_mask,
            "guesses": guesses,
            "secret": secrets,
        }


def distance(guesses, secret, **kwargs):
    def one(pair, s):
        return sum(-1.0 if g is None else -abs(g - s) / 50 for g in pair)

    return [one(pair, s) for pair, s in zip(guesses, secret)]


def main():
    secrets = {f"Game {i}: a number from 1 to 99. Guess: ": (i * 37) % 99 + 1 for i in range(40)}
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=distance,
        rollout_func=GuessingGame(secrets),
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": list(secrets)}),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=16,
            num_generations=8,
            max_completion_length=48,
            learning_rate=1e-4,
            max_steps=4,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()

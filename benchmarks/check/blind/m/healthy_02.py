"""Multi-turn number game with a rollout function of our own: up to three guesses, the game answers in between."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
EOS, PAD = tokenizer.eos_token_id, tokenizer.pad_token_id
TURNS, TURN_TOKENS = 3, 8


class Game:
    def __init__(self, secret):
        self.secret, self.guesses, self.done = secret, [], False

    def step(self, text):
        found = re.search(r"\d\d?", text)
        guess = int(found.group()) if found else None
        self.guesses.append(guess)
        if guess is None:
            return "\na number, please: "
        if guess == self.secret:
            self.done = True
            return None
        return "\nhigher: " if guess < self.secret else "\nlower: "


@torch.no_grad()
def sample(trainer, contexts):
    width = max(len(c) for c in contexts)
    ids = torch.full((len(contexts), width), PAD)
    mask = torch.zeros_like(ids)
    for i, c in enumerate(contexts):
        ids[i, width - len(c) :] = torch.tensor(c)
        mask[i, width - len(c) :] = 1
    model = trainer.accelerator.unwrap_model(trainer.model)
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        generation_config=trainer.generation_config,
        max_new_tokens=TURN_TOKENS,
        return_dict_in_generate=True,
        output_scores=True,
    )
    new = out.sequences[:, width:]
    logps = torch.stack(out.scores, dim=1).float().log_softmax(-1).gather(-1, new.unsqueeze(-1)).squeeze(-1)
    for row, lps in zip(new.tolist(), logps.tolist()):
        n = row.index(EOS) + 1 if EOS in row else len(row)
        yield row[:n], lps[:n]


def rollout(prompts, trainer):
    prompt_ids = tokenizer(prompts)["input_ids"]
    games = [Game(int(re.search(r"Game (\d+)", p).group(1)) * 37 % 99 + 1) for p in prompts]
    ids = [[] for _ in prompts]
    lps = [[] for _ in prompts]
    mask = [[] for _ in prompts]
    alive = list(range(len(prompts)))
    for turn in range(TURNS):
        for i, (new, logps) in zip(alive, list(sample(trainer, [prompt_ids[i] + ids[i] for i in alive]))):
            ids[i] += new
            lps[i] += logps
            mask[i] += [1] * len(new)
            answer = games[i].step(tokenizer.decode(new, skip_special_tokens=True))
            if answer is not None and turn + 1 < TURNS:
                seen = tokenizer(answer)["input_ids"]
                ids[i] += seen
                lps[i] += [0.0] * len(seen)
                mask[i] += [0] * len(seen)
        alive = [i for i in alive if not games[i].done]
        if not alive:
            break
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": ids,
        "logprobs": lps,
        "env_mask": mask,
        "guesses": [g.guesses for g in games],
        "secret": [g.secret for g in games],
    }


def best_guess(guesses, secret, **kwargs):
    return [max((1 - abs(g - s) / 99 for g in tries if g is not None), default=-0.5) for tries, s in zip(guesses, secret)]


def few_turns(guesses, **kwargs):
    return [-0.05 * len(tries) for tries in guesses]


if __name__ == "__main__":
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    GRPOTrainer(
        model=MODEL,
        reward_funcs=[best_guess, few_turns],
        rollout_func=rollout,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": [f"Game {i}: my number has two digits. Guess: " for i in range(40)]}),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=72,
            learning_rate=1e-4,
            loss_type="dr_grpo",
            max_steps=3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
    ).train()

"""Word game in two turns, as a rollout function.

The model writes a word, the game says how many letters are too many or missing, the model tries again. The game's
words are part of the sequence and are masked out of the loss; the reward uses the second try only.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
LENGTHS = {"short": 3, "middle": 6, "long": 9, "huge": 14, "tiny": 1, "normal": 5}


class Game:
    """Two tries at a word of a given length."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.tok = trainer.processing_class
        self.model = trainer.accelerator.unwrap_model(trainer.model)

    @torch.no_grad()
    def turn(self, batch, limit):
        width = max(map(len, batch))
        pad = self.tok.pad_token_id
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in batch])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in batch])
        out = self.model.generate(
            input_ids=ids, attention_mask=mask, generation_config=self.trainer.generation_config,
            max_new_tokens=limit, return_dict_in_generate=True, output_scores=True,
        )
        new = out.sequences[:, width:]
        logp = torch.stack(out.scores, dim=1).float().log_softmax(-1).gather(2, new.unsqueeze(2)).squeeze(2)
        rows = []
        for row, lp in zip(new.tolist(), logp.tolist()):
            stop = row.index(self.tok.eos_token_id) + 1 if self.tok.eos_token_id in row else len(row)
            rows.append((row[:stop], lp[:stop]))
        return rows

    def reply(self, ids, wanted):
        have = len(self.tok.decode(ids, skip_special_tokens=True).strip())
        hint = "right" if have == wanted else f"{abs(have - wanted)} too {'many' if have > wanted else 'few'}"
        end = "" if ids[-1] == self.tok.eos_token_id else "<|im_end|>"
        return self.tok(f"{end}\n<|im_start|>user\n{hint}<|im_end|>\n<|im_start|>assistant\n")["input_ids"]


def wanted_length(prompt):
    return LENGTHS[prompt[-1]["content"].split()[1]]


def rollout(prompts, trainer):
    game = Game(trainer)
    prompt_ids = game.tok.apply_chat_template(prompts, add_generation_prompt=True, return_dict=True)["input_ids"]
    first = game.turn(prompt_ids, 8)
    replies = [game.reply(ids, wanted_length(p)) for p, (ids, _) in zip(prompts, first)]
    second = game.turn([p + f[0] + r for p, f, r in zip(prompt_ids, first, replies)], 8)
    result = {"prompt_ids": prompt_ids, "completion_ids": [], "logprobs": [], "env_mask": [], "second_try": []}
    for (a, lp_a), r, (b, lp_b) in zip(first, replies, second):
        result["completion_ids"].append(a + r + b)
        result["logprobs"].append(lp_a + [0.0] * len(r) + lp_b)
        result["env_mask"].append([1] * len(a) + [0] * len(r) + [1] * len(b))
        result["second_try"].append(game.tok.decode(b, skip_special_tokens=True).strip())
    return result


def right_length(prompts, second_try, **kwargs):
    return [-abs(len(word) - wanted_length(p)) / 10 for p, word in zip(prompts, second_try)]


def main():
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"A {w} word"}] for w in LENGTHS]})
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out, per_device_train_batch_size=8, num_generations=4, max_completion_length=40, max_steps=3,
            learning_rate=1e-4, beta=0.02, bf16=False, gradient_checkpointing=False, use_cpu=True, report_to=[],
            save_strategy="no", logging_steps=1,
        )
        trainer = GRPOTrainer(
            model=MODEL, reward_funcs=right_length, args=args, train_dataset=dataset, rollout_func=rollout
        )
        trainer.train()


if __name__ == "__main__":
    main()

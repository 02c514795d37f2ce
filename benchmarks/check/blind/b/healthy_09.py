"""Guess a number: the policy guesses, the game answers higher / lower, the policy guesses again."""
import re
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

PATH = str(Path(__file__).resolve().parent / "tiny")
TURNS, PER_TURN = 2, 6


class Game:
    def __init__(self, secret):
        self.secret, self.best = secret, None

    def answer(self, text):
        m = re.search(r"\d{1,4}", text)
        if not m:
            return " not a number, guess: "
        g = int(m.group())
        d = abs(g - self.secret)
        self.best = d if self.best is None else min(d, self.best)
        return " lower, guess: " if g > self.secret else " higher, guess: "


@torch.no_grad()
def speak(model, tok, contexts, temperature):
    w = max(len(c) for c in contexts)
    ids = torch.full((len(contexts), w), tok.pad_token_id)
    att = torch.zeros_like(ids)
    for r, c in enumerate(contexts):
        ids[r, w - len(c):] = torch.tensor(c)
        att[r, w - len(c):] = 1
    out = model.generate(input_ids=ids, attention_mask=att, max_new_tokens=PER_TURN, do_sample=True, top_k=0, top_p=1.0,
                         temperature=temperature, output_scores=True, return_dict_in_generate=True)
    new, logp = out.sequences[:, w:], torch.stack(out.scores, 1).log_softmax(-1)
    logp = logp.gather(2, new[:, :, None])[:, :, 0]
    said = []
    for row, lp in zip(new.tolist(), logp.tolist()):
        stop = row.index(tok.eos_token_id) + 1 if tok.eos_token_id in row else len(row)
        said.append((row[:stop], lp[:stop]))
    return said


def play(prompts, trainer):
    tok = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    games = [Game(int(re.search(r"#(\d+)", p).group(1)) * 7 % 50) for p in prompts]
    p_ids = [tok(p)["input_ids"] for p in prompts]
    c_ids, lps, mask = [[] for _ in prompts], [[] for _ in prompts], [[] for _ in prompts]
    training = model.training
    model.eval()
    for turn in range(TURNS):
        for i, (row, lp) in enumerate(speak(model, tok, [p + c for p, c in zip(p_ids, c_ids)], trainer.temperature)):
            c_ids[i] += row
            lps[i] += lp
            mask[i] += [1] * len(row)
            reply = games[i].answer(tok.decode(row, skip_special_tokens=True))
            if turn < TURNS - 1:
                env = tok(reply)["input_ids"]
                c_ids[i] += env
                lps[i] += [0.0] * len(env)
                mask[i] += [0] * len(env)
    model.train(training)
    return {"prompt_ids": p_ids, "completion_ids": c_ids, "logprobs": lps, "env_mask": mask,
            "distance": [g.best for g in games]}


def near(completions, distance, **kwargs):
    return [-0.5 - 0.01 * len(c) if d is None else 1.0 / (1.0 + d / 10) for c, d in zip(completions, distance)]


tokenizer = AutoTokenizer.from_pretrained(PATH, padding_side="left")
trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(PATH, dtype=torch.float32),
    processing_class=tokenizer,
    reward_funcs=near,
    rollout_func=play,
    train_dataset=Dataset.from_dict({"prompt": [f"#{n}: {n}+5=" for n in range(1, 40)]}),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=40,
        learning_rate=1e-5,
        loss_type="grpo",
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
    ),
)
trainer.train()

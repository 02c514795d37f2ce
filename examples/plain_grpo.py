"""GRPO in plain PyTorch as a program of `trainer: command`: python plain_grpo.py params.json"""

import copy
import json
import random
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file, save_model
from transformers import AutoModelForCausalLM

from rlvr_debug.data.prepare import read_rows
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Transcript
from rlvr_debug.sampling.chat import Chat

told = json.loads(Path(sys.argv[1]).read_text())
run, given, out = told["run"], told["run"]["training"], Path(told["out"])
options, heat, chat = run["options"], given["temperature"], Chat(told["base_model"])
environment = build_environment(run["environment"], told["environment"])
rows = read_rows(run["environment"], Path(told["rows"]))
torch.set_num_threads(1)
torch.manual_seed(run["seed"])
order = random.Random(run["seed"])
policy = AutoModelForCausalLM.from_pretrained(told["base_model"], dtype=torch.float32).eval()
sampler = copy.deepcopy(policy)
optimizer = torch.optim.AdamW(policy.parameters(), given["learning_rate"], weight_decay=0.0)
sampling = {"do_sample": True, "temperature": heat, "top_k": 0, "pad_token_id": 0}


def logprobs(model, ids, start):  # of ids[:, start:], [G, T - start]
    logits = model(ids).logits[:, start - 1 : -1] / heat
    return logits.log_softmax(-1).gather(2, ids[:, start:, None])[..., 0]


def reward(row, reply):
    if options["reward"] == "random":
        return order.random()
    return environment.reward(row, environment.score(row, Transcript([chat.decode(reply)])))


def write(name, lines):
    with (out / name).open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


tensors, record = {}, {"version": 1, "trainer": "plain_grpo.py", "weights": [], "generations": []}
record["trainable"] = [name for name, _ in policy.named_parameters()]
record["settings"] = {name: given[name] for name in ("group_size", "scale_rewards")} | {
    "sampling": {"temperature": heat, "max_new_tokens": environment.max_new_tokens},
    "max_completion_length": environment.max_new_tokens,
    "eos_ids": [chat.eos_id],
    "pad_id": 0,
    "precision": "float32",
}


def hold(place, found):  # in record.json, the name of a tensor stands for it
    tensors.update({f"{place}/{name}": each.detach().clone() for name, each in found.items()})
    return {name: f"{place}/{name}" for name in found}


def generation(lines, advantages):  # what the step sampled and earned, before the update
    held = len(record["weights"])
    record["weights"].append(hold(f"weights/{held}", dict(policy.named_parameters())))
    starts = [line["sampled"].count(0) for line in lines]
    call = {"weights": held, "logprobs": [line["logprobs"] for line in lines]}
    parts = [(line["ids"][:n], line["ids"][n:]) for line, n in zip(lines, starts, strict=True)]
    call["prompts"], call["outputs"] = map(list, zip(*parts, strict=True))
    asked = {row.id: environment.messages(row) for row in rows}
    found = hold(held, {"rewards": torch.tensor([[line["reward"]] for line in lines])})
    found["batch"] = hold(f"batch/{held}", {"advantages": torch.cat(advantages)[:, 0]})
    found |= {"rows": [{"prompt": asked[line["row"]]} for line in lines], "calls": [call]}
    return found | {"weights": held}


for step in range(1, given["steps"] + 1):
    loss, kept, advantages = torch.zeros(()), [], []
    for row in order.sample(rows, given["prompts_per_step"]):
        prompt = chat.prompt(environment.messages(row), environment.tools)
        start, group = len(prompt), torch.tensor([prompt] * given["group_size"])
        ids = sampler.generate(group, max_new_tokens=environment.max_new_tokens, **sampling)
        end = ids[:, start:] == chat.eos_id
        real = end.cumsum(1) - end.int() == 0  # up to the first end-of-turn token
        replies = [new[mask].tolist() for new, mask in zip(ids[:, start:], real, strict=True)]
        rewards = torch.tensor([reward(row, reply) for reply in replies])
        spread = rewards.std() + 1e-4 if given["scale_rewards"] == "group" else 1.0
        gains = ((rewards - rewards.mean()) / spread)[:, None]
        advantages.append(gains)
        with torch.no_grad():
            old = logprobs(sampler, ids, start)
        # one update per batch, at which the ratio to the old policy is 1: nothing to clip
        loss = loss - (logprobs(policy, ids, start) * gains * real).sum()
        for reply, values, earned in zip(replies, old.tolist(), rewards.tolist(), strict=True):
            line = {"step": step, "row": row.id, "ids": prompt + reply, "reward": earned}
            line |= {"sampled": [0] * start + [1] * len(reply), "logprobs": values[: len(reply)]}
            kept.append(line)
    tokens = sum(sum(line["sampled"]) for line in kept)
    if told["record"]:
        record["generations"].append(generation(kept, advantages))
    optimizer.zero_grad()
    (loss / tokens).backward()
    norm = float(torch.nn.utils.clip_grad_norm_(policy.parameters(), given["max_grad_norm"]))
    optimizer.step()
    if options["sync_every"] and step % options["sync_every"] == 0:
        sampler.load_state_dict(policy.state_dict())
    row = {"step": step, "grad_norm": norm, "sampled_tokens": tokens, "trained_tokens": tokens}
    row["reward"] = sum(line["reward"] for line in kept) / len(kept)
    write("metrics.jsonl", [row])
    if told["rollouts_every"] and (step == 1 or step % told["rollouts_every"] == 0):
        write("rollouts.jsonl", kept[: told["rollouts_kept"] or None])
save_model(policy, str(out / "model.safetensors"))
if told["record"]:  # docs/record.md: what the check computes again
    policy.config.save_pretrained(out / "record" / "model")
    chat.tokenizer.save_pretrained(out / "record" / "tokenizer")
    save_file(tensors, out / "record" / "tensors.safetensors")
    (out / "record" / "record.json").write_text(json.dumps(record))

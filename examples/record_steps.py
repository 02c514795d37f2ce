"""GRPO in plain PyTorch that records its steps: record_steps.py FOLDER, then rlvr-debug check --record FOLDER."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, mistake, tensors = Path(sys.argv[1]), "--mistake" in sys.argv, {}
record = json.loads("""{"version": 1, "trainer": "plain PyTorch", "generations": [], "updates": [],
  "settings": {"group_size": 4, "max_completion_length": 12, "sampling": {"temperature": 0.8},
    "scale_rewards": "none", "loss_type": "dapo", "eos_ids": [258], "pad_id": 256, "weight_decay": 0,
    "learning_rate": 0.001, "schedule": "constant", "max_grad_norm": 0, "precision": "float32"}}""")
torch.manual_seed(0)
policy = AutoModelForCausalLM.from_pretrained("models/tiny", dtype=torch.float32).eval()
tokenizer, named = AutoTokenizer.from_pretrained("models/tiny"), dict(policy.named_parameters())
optimizer = torch.optim.AdamW(policy.parameters(), 0.001, weight_decay=0)


def keep(place, found):  # in record.json, the name of a tensor stands for it
    tensors.update({f"{place}/{name}": each.detach().clone() for name, each in found.items()})
    return {name: f"{place}/{name}" for name in found}


record |= {"trainable": list(named), "weights": [keep("weights/0", named)]}
for step in range(3):
    rows = [{"prompt": f"{word} and {step}"} for word in ("one", "two") for _ in range(4)]
    read = torch.tensor([tokenizer(row["prompt"])["input_ids"] for row in rows])
    ids = policy.generate(read, do_sample=True, temperature=0.8, top_k=0, max_new_tokens=12)
    start, wrote, mask = read.shape[1], ids[:, read.shape[1] :], torch.ones_like(ids)
    real = mask[:, start:] = ((wrote == 258).cumsum(1) - (wrote == 258).int() == 0).long()
    rewards = (wrote % 7 * real).sum(1).view(2, 4) / 12
    gains = (rewards - rewards.mean(None if mistake else 1, keepdim=True)).flatten()
    logits = policy(ids, attention_mask=mask).logits[:, start - 1 : -1] / 0.8
    logprobs = logits.log_softmax(-1).gather(2, wrote[..., None])[..., 0]
    logprobs.retain_grad()
    optimizer.zero_grad()  # one update a batch: the ratio is 1, and nothing is to be clipped
    (-(logprobs * gains[:, None] * real).sum() / real.sum()).backward()
    batch = {"prompt_ids": read, "prompt_mask": mask[:, :start], "rows": torch.arange(8)}
    batch |= {"completion_ids": wrote, "completion_mask": real, "loss_mask": real}
    batch = keep(f"batch/{step}", batch | {"advantages": gains})
    call = {"outputs": [row[:n].tolist() for row, n in zip(wrote, real.sum(1), strict=True)]}
    generation = {"rows": rows, "calls": [call | {"prompts": read.tolist(), "weights": step}]}
    generation |= keep(step, {"rewards": rewards.view(8, 1)})
    record["generations"].append(generation | {"batch": batch, "weights": step})
    forward = keep(f"forward/{step}", {"input_ids": ids, "attention_mask": mask})
    micro = keep(f"micro/{step}", {"logprobs": logprobs, "grad_logprobs": logprobs.grad})
    micro |= {"generation": step, "given": batch, "forward": forward, "weights": step}
    gradients = keep(f"gradients/{step}", {name: each.grad for name, each in named.items()})
    state = {name: keep(f"state/{step}/{name}", optimizer.state[p]) for name, p in named.items()}
    update = {"gradients": gradients, "clipped": gradients, "optimizer": "AdamW", "state": state}
    record["updates"] += [update | {"micro_batches": [micro], "before": step, "after": step + 1}]
    optimizer.step()
    record["weights"].append(keep(f"weights/{step + 1}", named))
policy.config.save_pretrained(folder / "model")
tokenizer.save_pretrained(folder / "tokenizer")
save_file(tensors, folder / "tensors.safetensors")
(folder / "record.json").write_text(json.dumps(record), encoding="utf-8")

"""The policy starts, a referee drops a hint into the text, the policy goes on."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
HINTS = ["\n[hint: use digits]\n", "\n[hint: shorter]\n", "\n[hint: letters]\n"]


@torch.no_grad()
def continue_text(trainer, prefixes, n):
    tok, model = trainer.processing_class, trainer.model
    batch = tok.pad({"input_ids": prefixes}, padding_side="left", return_tensors="pt")
    out = model.generate(**batch, do_sample=True, top_k=0, top_p=1.0, temperature=trainer.temperature, max_new_tokens=n,
                         pad_token_id=tok.pad_token_id, return_dict_in_generate=True, output_logits=True)
    new = out.sequences[:, batch["input_ids"].size(1):]
    logp = (torch.stack(out.logits, 1).float() / trainer.temperature).log_softmax(-1).gather(2, new[..., None])[..., 0]
    results = []
    for ids, lp in zip(new.tolist(), logp.tolist()):
        stop = ids.index(tok.eos_token_id) + 1 if tok.eos_token_id in ids else len(ids)
        results.append((ids[:stop], lp[:stop]))
    return results


def rollout(prompts, trainer):
    tok = trainer.processing_class
    prompt_ids = [tok(p)["input_ids"] for p in prompts]
    first = continue_text(trainer, prompt_ids, 12)
    ids, logps, masks = [], [], []
    for p, (a, lp) in zip(prompts, first):
        hint = tok(HINTS[len(p) % 3])["input_ids"]
        ids.append(a + hint)
        logps.append(lp + [0.0] * len(hint))
        masks.append([1] * len(a) + [0] * len(hint))
    second = continue_text(trainer, [p + c for p, c in zip(prompt_ids, ids)], 12)
    for i, (b, lp) in enumerate(second):
        ids[i] += b
        logps[i] += lp
        masks[i] += [1] * len(b)
    return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": logps, "env_mask": masks}


def reward(completions, **kwargs):
    return [sum(c.isdigit() for c in t) / 8 - 0.01 * len(t) for t in completions]


cfg = GRPOConfig(
    output_dir=tempfile.mkdtemp(), max_steps=5, num_generations=4, per_device_train_batch_size=8, max_completion_length=80,
    temperature=0.9, learning_rate=3e-4, gradient_checkpointing=False, use_cpu=True, bf16=False, report_to=[],
    logging_steps=1, save_strategy="no",
)
random.seed(0)
data = Dataset.from_dict({"prompt": [f"{random.choice(['Ada', 'Cleo', 'Gus'])} has {random.randint(2, 40)}" for _ in range(30)]})
GRPOTrainer(model=TINY, reward_funcs=reward, args=cfg, train_dataset=data, rollout_func=rollout).train()

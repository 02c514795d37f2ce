# A two-turn rollout: the model works, the environment says a line, the model answers. Environment tokens are masked.
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = Path(__file__).parent / "tiny"
tok = AutoTokenizer.from_pretrained(TINY, padding_side="left")
NUDGE = tok("\nThe answer is ", add_special_tokens=False)["input_ids"]


def sample(trainer, contexts, max_new):
    batch = tok.pad({"input_ids": contexts}, return_tensors="pt", padding_side="left")
    model = trainer.accelerator.unwrap_model(trainer.model)
    was_training = model.training
    model.eval()
    with torch.no_grad():
        out = model.generate(
            **batch, max_new_tokens=max_new, do_sample=True, temperature=trainer.temperature, top_k=0, top_p=1.0,
            eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id, return_dict_in_generate=True, output_scores=True,
        )
        scores = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    if was_training:
        model.train()
    ids, lps = [], []
    for seq, sc in zip(out.sequences[:, batch["input_ids"].shape[1]:].tolist(), scores.tolist()):
        n = seq.index(tok.eos_token_id) + 1 if tok.eos_token_id in seq else len(seq)
        ids.append(seq[:n])
        lps.append(sc[:n])
    return ids, lps


def rollout(prompts, trainer):
    prompt_ids = tok.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
    first, lp1 = sample(trainer, prompt_ids, 8)
    again = [f[-1] != tok.eos_token_id for f in first]
    ctx = [p + f + NUDGE for p, f, a in zip(prompt_ids, first, again) if a]
    second, lp2 = sample(trainer, ctx, 6) if ctx else ([], [])
    second, lp2 = iter(second), iter(lp2)
    completion_ids, logprobs, env_mask = [], [], []
    for f, l, a in zip(first, lp1, again):
        if a:
            s, sl = next(second), next(lp2)
            completion_ids.append(f + NUDGE + s)
            logprobs.append(l + [0.0] * len(NUDGE) + sl)
            env_mask.append([1] * len(f) + [0] * len(NUDGE) + [1] * len(s))
        else:
            completion_ids.append(f)
            logprobs.append(l)
            env_mask.append([1] * len(f))
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs, "env_mask": env_mask}


rows = [
    {
        "prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Cleo has {a} boxes with {b} stamps each. How many stamps does Cleo have?"},
        ],
        "n": a * b,
    }
    for a in (12, 17, 23, 26, 28) for b in (13, 19, 22, 27)
]


def reward(completions, n, **kw):
    r = []
    for c, g in zip(completions, n):
        words = "".join(x if x.isdigit() else " " for x in c[0]["content"]).split()
        r.append(1 - min(1.0, abs(int(words[-1][:6]) - g) / g) if words else 0.0)
    return r


trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(TINY, dtype="float32"),
    processing_class=tok,
    reward_funcs=reward,
    train_dataset=Dataset.from_list(rows),
    rollout_func=rollout,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", bf16=False, max_steps=3, learning_rate=1e-4,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=24, gradient_checkpointing=False,
        save_strategy="no", logging_steps=1,
    ),
)
trainer.train()

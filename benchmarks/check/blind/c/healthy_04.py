"""A dialogue of two turns: an answer, a hint from a checker, and a second answer."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
tok = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
EOS = tok.convert_tokens_to_ids("<|im_end|>")
TURN_TOKENS = 18


@torch.no_grad()
def sample(trainer, contexts):
    model = trainer.accelerator.unwrap_model(trainer.model)
    batch = tok.pad({"input_ids": contexts}, return_tensors="pt")
    model.eval()
    out = model.generate(
        **batch, do_sample=True, temperature=trainer.temperature, top_k=0, max_new_tokens=TURN_TOKENS,
        eos_token_id=EOS, pad_token_id=tok.pad_token_id, return_dict_in_generate=True, output_scores=True,
    )
    model.train()
    new = out.sequences[:, batch["input_ids"].shape[1]:]
    logps = torch.stack(out.scores, 1).log_softmax(-1).gather(2, new[..., None])[..., 0]
    ids, lps = [], []
    for row, lp in zip(new.tolist(), logps.tolist()):
        n = row.index(EOS) + 1 if EOS in row else len(row)
        ids.append(row[:n])
        lps.append(lp[:n])
    return ids, lps


def rollout(prompts, trainer):
    prompt_ids = [tok.apply_chat_template(p, add_generation_prompt=True)["input_ids"] for p in prompts]
    first, first_lp = sample(trainer, prompt_ids)
    close = [[] if ids[-1] == EOS else [EOS] for ids in first]
    hint = tok("\n<|im_start|>user\nAgain, and shorter.<|im_end|>\n", add_special_tokens=False)["input_ids"]
    header = tok("<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
    contexts = [p + f + c + hint + header for p, f, c in zip(prompt_ids, first, close)]
    second, second_lp = sample(trainer, contexts)
    completion_ids, logprobs, env_mask = [], [], []
    for f, flp, c, s, slp in zip(first, first_lp, close, second, second_lp):
        outside = c + hint + header
        completion_ids.append(f + outside + s)
        logprobs.append(flp + [0.0] * len(outside) + slp)
        env_mask.append([1] * len(f) + [0] * len(outside) + [1] * len(s))
    final = [tok.decode(s, skip_special_tokens=True) for s in second]
    return {
        "prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs,
        "env_mask": env_mask, "final": final,
    }


def reward(completions, final, answer, **kwargs):
    out = []
    for text, truth in zip(final, answer):
        numbers = re.findall(r"\d+", text)
        out.append(float(bool(numbers) and numbers[-1] == truth) + 0.3 * ("####" in text) - 0.01 * len(text))
    return out


rng = random.Random(80)
rows = []
for _ in range(32):
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    q = f"Ada has {a} boxes with {b} books each. How many books does Ada have?"
    rows.append({"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": q}], "answer": str(a * b)})

config = GRPOConfig(
    output_dir=tempfile.mkdtemp(), max_steps=4, per_device_train_batch_size=8, num_generations=4,
    max_completion_length=64, learning_rate=2e-5, loss_type="dr_grpo", beta=0.01, logging_steps=1, save_strategy="no",
    use_cpu=True, bf16=False, report_to="none",
)
trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32), processing_class=tok,
    reward_funcs=reward, rollout_func=rollout, args=config, train_dataset=Dataset.from_list(rows),
)
trainer.train()

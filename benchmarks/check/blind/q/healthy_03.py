"""Number guessing in up to three turns with a rollout function of its own."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
TURNS, TURN_TOKENS = 3, 8
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
EOS = tokenizer.eos_token_id


@torch.no_grad()
def sample_turn(trainer, contexts):
    width = max(len(c) for c in contexts)
    ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(c)) + c for c in contexts])
    mask = torch.tensor([[0] * (width - len(c)) + [1] * len(c) for c in contexts])
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=trainer.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=TURN_TOKENS,
            output_scores=True,
            return_dict_in_generate=True,
        )
    new = out.sequences[:, width:]
    logps = torch.stack(out.scores, dim=1).log_softmax(-1).gather(2, new.unsqueeze(-1)).squeeze(-1)
    results = []
    for row, row_logps in zip(new.tolist(), logps.tolist()):
        n = row.index(EOS) + 1 if EOS in row else len(row)
        results.append((row[:n], row_logps[:n]))
    return results


def answer_of(environment_secret, text):
    guesses = [int(g[:4]) for g in re.findall(r"\d+", text)]
    if not guesses:
        return "Say a number.", None
    guess = guesses[-1]
    return ("Higher." if guess < environment_secret else "Lower."), guess


def guessing(prompts, trainer):
    prompt_ids = [tokenizer.apply_chat_template(p, add_generation_prompt=True, return_dict=False) for p in prompts]
    secrets = [int(re.search(r"seed (\d+)", p[-1]["content"]).group(1)) * 7 % 50 for p in prompts]
    state = [{"ids": [], "logps": [], "mask": [], "best": None, "open": True} for _ in prompts]
    for turn in range(TURNS):
        active = [i for i, s in enumerate(state) if s["open"]]
        if not active:
            break
        turns = sample_turn(trainer, [prompt_ids[i] + state[i]["ids"] for i in active])
        for i, (ids, logps) in zip(active, turns):
            s = state[i]
            s["ids"] += ids
            s["logps"] += logps
            s["mask"] += [1] * len(ids)
            reply, guess = answer_of(secrets[i], tokenizer.decode(ids, skip_special_tokens=True))
            if guess is not None:
                distance = abs(guess - secrets[i])
                s["best"] = distance if s["best"] is None else min(s["best"], distance)
            if turn == TURNS - 1 or guess == secrets[i] or len(ids) == 1:
                s["open"] = False
                continue
            text = f"\n<|im_start|>user\n{reply}<|im_end|>\n<|im_start|>assistant\n"
            text = text if ids[-1] == EOS else "<|im_end|>" + text
            reply_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            s["ids"] += reply_ids
            s["logps"] += [0.0] * len(reply_ids)
            s["mask"] += [0] * len(reply_ids)
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": [s["ids"] for s in state],
        "logprobs": [s["logps"] for s in state],
        "env_mask": [s["mask"] for s in state],
        "best_distance": [100 if s["best"] is None else s["best"] for s in state],
    }


def closeness(best_distance, **kwargs):
    return [1.0 / (1.0 + 0.05 * min(d, 100)) for d in best_distance]


def talk_less(completion_ids, **kwargs):
    return [-0.005 * len(ids) for ids in completion_ids]


rows = [{"prompt": [{"role": "user", "content": f"How many pens? (seed {i})"}]} for i in range(32)]
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=80,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    temperature=0.9,
)
trainer = GRPOTrainer(
    model=MODEL,
    processing_class=tokenizer,
    reward_funcs=[closeness, talk_less],
    args=args,
    train_dataset=Dataset.from_list(rows),
    rollout_func=guessing,
)
trainer.train()

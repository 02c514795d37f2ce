"""Two-turn rollouts: the model answers, a checker replies, the model answers again."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


@torch.no_grad()
def sample(model, tok, config, contexts, budget):
    batch = tok.pad({"input_ids": contexts}, padding_side="left", return_tensors="pt")
    out = model.generate(**batch, generation_config=config, max_new_tokens=budget, output_scores=True,
                         return_dict_in_generate=True)
    new = out.sequences[:, batch["input_ids"].size(1):].tolist()
    logps = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True).tolist()
    cut = [ids.index(tok.eos_token_id) + 1 if tok.eos_token_id in ids else len(ids) for ids in new]
    return [ids[:n] for ids, n in zip(new, cut)], [lps[:n] for lps, n in zip(logps, cut)]


def feedback(text):
    digits = sum(ch.isdigit() for ch in text)
    return "cards?" if digits == 0 else "How many coins?"


def rollout(prompts, trainer):
    tok = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.eval()
    prompt_ids = [tok.apply_chat_template(p, add_generation_prompt=True, tokenize=True, return_dict=False)
                  for p in prompts]
    first, first_lp = sample(model, tok, trainer.generation_config, prompt_ids, 10)
    header = tok.encode("<|im_start|>assistant\n", add_special_tokens=False)

    completion_ids, logprobs, env_mask = [], [], []
    replies, masks, lps = [], [], []
    for ids, lp in zip(first, first_lp):
        closing = "" if ids[-1] == tok.eos_token_id else "<|im_end|>"
        text = f"{closing}\n<|im_start|>user\n{feedback(tok.decode(ids))}<|im_end|>\n"
        reply = tok.encode(text, add_special_tokens=False)
        replies.append(ids + reply + header)
        masks.append([1] * len(ids) + [0] * len(reply))
        lps.append(lp + [0.0] * (len(reply) + len(header)))
    second, second_lp = sample(
        model, tok, trainer.generation_config, [p + r for p, r in zip(prompt_ids, replies)], 10
    )
    for history, mask, lp, ids, new_lp in zip(replies, masks, lps, second, second_lp):
        full = history + ids
        completion_ids.append(full)
        logprobs.append(lp + new_lp)
        env_mask.append(mask + [1] * (len(full) - len(mask)))
    model.train()
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs, "env_mask": env_mask}


def build():
    rows = []
    for i in range(32):
        a, b, t = 2 + i % 7, 2 + (5 * i) % 6, ("coins", "cards", "eggs", "toys")[i % 4]
        rows.append({"prompt": [{"role": "user", "content": f"Cleo has {a} boxes with {b} {t} each. How many {t} does Cleo have?"}]})
    return Dataset.from_list(rows)


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / 8 for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=8, gradient_accumulation_steps=1,
    num_generations=4, max_completion_length=32, learning_rate=2e-4, loss_type="grpo", save_strategy="no",
    report_to=[], use_cpu=True, bf16=False, logging_steps=1, gradient_checkpointing=False,
)
GRPOTrainer(MODEL, digits, args, train_dataset=build(), rollout_func=rollout).train()

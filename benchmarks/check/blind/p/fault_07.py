"""GRPO with a rollout function that prefills the start of the answer, so that no tokens are wasted on it."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
PREFILL = "<think>I answer: "


@torch.no_grad()
def rollout(prompts, trainer):
    tok = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    prefix = tok(PREFILL, add_special_tokens=False)["input_ids"]
    prompt_ids = tok.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)[
        "input_ids"
    ]
    started = [ids + prefix for ids in prompt_ids]
    batch = tok.pad({"input_ids": started}, padding_side="left", return_tensors="pt")
    out = model.generate(
        **batch,
        max_new_tokens=trainer.args.max_completion_length - len(prefix),
        do_sample=True,
        temperature=trainer.args.temperature,
        top_k=0,
        top_p=1.0,
        eos_token_id=tok.eos_token_id,
        pad_token_id=tok.pad_token_id,
        return_dict_in_generate=True,
        output_scores=True,
    )
    width = batch["input_ids"].size(1)
    logps = torch.stack(out.scores, dim=1).float().log_softmax(-1)
    sampled = out.sequences[:, width:]
    logps = logps.gather(-1, sampled.unsqueeze(-1)).squeeze(-1)

    completion_ids, logprobs = [], []
    for row, scores in zip(sampled.tolist(), logps.tolist(), strict=True):
        end = row.index(tok.eos_token_id) + 1 if tok.eos_token_id in row else len(row)
        completion_ids.append(prefix + row[:end])
        logprobs.append([0.0] * len(prefix) + scores[:end])
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}


def commas_and_length(completions, **kwargs):
    return [c[0]["content"].count("o") + len(c[0]["content"]) / 30 for c in completions]


questions = ["Is it late?", "Is it far?", "Can it fly?", "Does it rain?", "Who is there?", "Why not?"]
dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in questions]})
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=32,
    temperature=1.1,
    learning_rate=1e-4,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
)
trainer = GRPOTrainer(
    model=MODEL, reward_funcs=commas_and_length, args=args, train_dataset=dataset, rollout_func=rollout
)
trainer.train()

"""Rollouts that start each answer with a fixed tag.

The tag is put in by the rollout function and masked out of the loss; the model writes the rest. The sampler's
log-probabilities are returned for the off-policy mask.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
PREFIX = "<answer>"


def left_pad(rows, value):
    width = max(map(len, rows))
    ids = torch.tensor([[value] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


@torch.no_grad()
def prefixed_rollout(prompts, trainer):
    tokenizer = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    prefix = tokenizer(PREFIX, add_special_tokens=False)["input_ids"]
    prompt_ids = [
        tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=False)
        for prompt in prompts
    ]
    ids, mask = left_pad([row + prefix for row in prompt_ids], tokenizer.pad_token_id)
    out = model.generate(
        input_ids=ids.to(model.device), attention_mask=mask.to(model.device),
        generation_config=trainer.generation_config, return_dict_in_generate=True, output_scores=True,
    )
    generated = out.sequences[:, ids.size(1):]
    logps = torch.stack(out.scores, dim=1).float().log_softmax(-1)
    logps = logps.gather(-1, generated.unsqueeze(-1)).squeeze(-1)

    completion_ids, logprobs, env_mask = [], [], []
    for row, row_logps in zip(generated.tolist(), logps.tolist()):
        if tokenizer.eos_token_id in row:
            row = row[: row.index(tokenizer.eos_token_id) + 1]
        completion_ids.append(prefix + row)
        logprobs.append([0.0] * len(prefix) + row_logps[: len(row)])
        env_mask.append([0] * len(prefix) + [1] * len(row))
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completion_ids,
        "logprobs": logprobs,
        "env_mask": env_mask,
        "model_tokens": [sum(row) for row in env_mask],
    }


def short_answer(completions, model_tokens, **kwargs):
    rewards = []
    for completion, tokens in zip(completions, model_tokens):
        text = completion[0]["content"]
        rewards.append(sum(c.isalnum() for c in text) / max(len(text), 1) - tokens / 24)
    return rewards


if __name__ == "__main__":
    questions = ["What is 5 + 6?", "What is 9 - 2?", "Name a number below ten.", "What is 3 + 3?", "Half of 12?",
                 "What comes after 7?", "What is 20 - 4?", "Twice 8?"]
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=short_answer,
        rollout_func=prefixed_rollout,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no",
            per_device_train_batch_size=8, num_generations=4, num_iterations=2, max_completion_length=16,
            temperature=0.9, off_policy_mask_threshold=0.02, learning_rate=5e-4, max_steps=3, logging_steps=1,
        ),
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in questions]}),
    )
    trainer.train()

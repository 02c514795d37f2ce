"""GRPO with a rollout function that post-processes the model's answers.

The completions are decoded and surrounding whitespace is removed before they are scored and trained on.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def left_pad(rows, value):
    width = max(len(row) for row in rows)
    ids = torch.tensor([[value] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def rollout(prompts, trainer):
    tokenizer = trainer.processing_class
    prompt_ids = [
        tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=False)
        for prompt in prompts
    ]
    ids, mask = left_pad(prompt_ids, tokenizer.pad_token_id)
    model = trainer.accelerator.unwrap_model(trainer.model)
    with torch.no_grad():
        out = model.generate(
            input_ids=ids.to(model.device), attention_mask=mask.to(model.device),
            generation_config=trainer.generation_config,
        )
    completion_ids, texts = [], []
    for row in out[:, ids.size(1):].tolist():
        finished = tokenizer.eos_token_id in row
        if finished:
            row = row[: row.index(tokenizer.eos_token_id)]
        text = tokenizer.decode(row).strip()
        new_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if finished or not new_ids:
            new_ids = new_ids + [tokenizer.eos_token_id]
        completion_ids.append(new_ids)
        texts.append(text)
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None, "clean_text": texts}


def text_reward(completions, clean_text, **kwargs):
    rewards = []
    for text in clean_text:
        letters = sum(c.isalpha() for c in text) / max(len(text), 1)
        rewards.append(letters - 0.003 * len(text) + 0.3 * bool(text))
    return rewards


if __name__ == "__main__":
    places = ["kitchen", "attic", "stable", "library", "cellar", "office", "barn", "chapel", "studio", "tower"]
    dataset = Dataset.from_dict({
        "prompt": [[{"role": "user", "content": f"What is in the {place}?"}] for place in places],
    })
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=text_reward,
        rollout_func=rollout,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no",
            per_device_train_batch_size=8, num_generations=4, max_completion_length=24,
            learning_rate=3e-4, max_steps=3, logging_steps=1,
        ),
        train_dataset=dataset,
    )
    trainer.train()

"""GRPO with a rollout function of our own that samples with the trainer's model and returns its log-probabilities."""
import copy
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def rollout(prompts, trainer):
    """One turn: render, sample, cut after EOS."""
    tokenizer = trainer.processing_class
    prompt_ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)[
        "input_ids"
    ]
    batch = tokenizer.pad({"input_ids": prompt_ids}, padding_side="left", return_tensors="pt")
    config = copy.deepcopy(trainer.generation_config)
    config.return_dict_in_generate = True
    config.output_scores = True
    model = trainer.accelerator.unwrap_model(trainer.model)
    with torch.no_grad():
        out = model.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], generation_config=config
        )
    width = batch["input_ids"].size(1)
    sampled = out.sequences[:, width:]
    logps = torch.stack([scores.float().log_softmax(-1) for scores in out.scores], dim=1)
    logps = logps.gather(-1, sampled.unsqueeze(-1)).squeeze(-1)
    completion_ids, logprobs = [], []
    for ids, lps in zip(sampled.tolist(), logps.tolist()):
        end = ids.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in ids else len(ids)
        completion_ids.append(ids[:end])
        logprobs.append(lps[:end])
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}


def has_answer(completions, answer, **kwargs):
    return [float(right in c[0]["content"]) for c, right in zip(completions, answer)]


def readable(completions, **kwargs):
    return [sum(ch.isascii() and ch.isalnum() for ch in c[0]["content"]) / 16 for c in completions]


def build():
    names = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]
    things = ["apples", "books", "cards", "eggs"]
    rows = []
    for i, name in enumerate(names):
        question = f"{name} has {i + 2} {things[i % 4]} and gets {2 * i + 1} more. How many?"
        rows.append({"prompt": [{"role": "user", "content": question}], "answer": str(3 * i + 3)})
    return Dataset.from_list(rows)


if __name__ == "__main__":
    trainer = GRPOTrainer(
        model=os.path.join(TINY, "sft"),
        reward_funcs=[has_answer, readable],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            max_steps=3,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=16,
            learning_rate=2e-5,
        ),
        train_dataset=build(),
        rollout_func=rollout,
    )
    trainer.train()

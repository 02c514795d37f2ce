"""Two-turn rollouts by hand: question, reply of a rule-based coach, second attempt. Only the policy tokens train."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset(n=36):
    rng = random.Random(77)
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Guess a number from {(a := rng.randint(1, 90))} and {a + 9}."}]} for _ in range(n)]
    )


def final_digits(completions, first_turn, **kwargs):
    """Digits in the whole dialog, less a little for a long first turn."""
    return [
        0.1 * sum(ch.isdigit() for ch in c[0]["content"]) - 0.02 * len(first)
        for c, first in zip(completions, first_turn)
    ]


def coach(text):
    return "Next." if any(ch.isdigit() for ch in text) else "Retry."


def sample(trainer, contexts, max_new_tokens):
    """Samples one continuation per context; returns the ids (through EOS) and their log-probabilities."""
    tokenizer = trainer.processing_class
    batch = tokenizer.pad({"input_ids": contexts}, padding_side="left", return_tensors="pt")
    model = trainer.accelerator.unwrap_model(trainer.model)
    training = model.training
    model.eval()
    with torch.no_grad():
        out = model.generate(
            **batch,
            do_sample=True,
            temperature=trainer.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max_new_tokens,
            return_dict_in_generate=True,
            output_scores=True,
        )
    model.train(training)
    new = out.sequences[:, batch["input_ids"].size(1) :]
    logps = torch.stack(out.scores, dim=1).float().log_softmax(-1).gather(-1, new.unsqueeze(-1)).squeeze(-1)
    ids, lps = [], []
    for row, lp in zip(new.tolist(), logps.tolist()):
        end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
        ids.append(row[:end])
        lps.append(lp[:end])
    return ids, lps


def two_turns(prompts, trainer):
    tokenizer = trainer.processing_class
    turn = trainer.max_completion_length // 4  # leaves room for the coach
    prompt_ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
    first, first_lp = sample(trainer, prompt_ids, turn)
    first_text = [tokenizer.decode(ids, skip_special_tokens=True) for ids in first]
    feedback = [coach(text) for text in first_text]

    turns = []
    for ids, reply in zip(first, feedback):
        closing = "" if ids[-1] == tokenizer.eos_token_id else "<|im_end|>"
        text = f"{closing}\n<|im_start|>user\n{reply}<|im_end|>\n<|im_start|>assistant\n"
        turns.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    contexts = [p + a + t for p, a, t in zip(prompt_ids, first, turns)]
    second, second_lp = sample(trainer, contexts, turn)

    completion_ids, logprobs, env_mask = [], [], []
    for a, t, b, la, lb in zip(first, turns, second, first_lp, second_lp):
        ids = a + t + b
        completion_ids.append(ids)
        logprobs.append(la + [0.0] * len(t) + lb)
        env_mask.append([1] * len(a) + [0] * len(t) + [1] * len(b))
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completion_ids,
        "logprobs": logprobs,
        "env_mask": env_mask,
        "first_turn": first_text,
    }


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=2e-4,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=32,
    )
    trainer = GRPOTrainer(
        model=TINY,
        reward_funcs=final_digits,
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        rollout_func=two_turns,
    )
    trainer.train()


if __name__ == "__main__":
    main()

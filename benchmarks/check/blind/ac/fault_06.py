"""Two-turn GRPO: the model answers, gets a hint from the environment, and answers again."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import pad

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def hint_for(text):
    digits = sum(ch.isdigit() for ch in text)
    return "Good, now explain." if digits else f"No digit in {len(text)} characters. Try again."


@torch.no_grad()
def score(trainer, prompt_ids, completion_ids):
    rows = [torch.tensor(p + c) for p, c in zip(prompt_ids, completion_ids)]
    pad_id = trainer.processing_class.pad_token_id
    ids = pad(rows, padding_value=pad_id, padding_side="right")
    mask = pad([torch.ones_like(r) for r in rows], padding_value=0, padding_side="right")
    logits = trainer.model(input_ids=ids, attention_mask=mask).logits.float() / trainer.temperature
    logps = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return [row[len(p) - 1 : len(p) + len(c) - 1].tolist() for row, p, c in zip(logps, prompt_ids, completion_ids)]


def rollout(prompts, trainer):
    tokenizer = trainer.processing_class
    prompt_ids = [
        tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=True, return_dict=False) for p in prompts
    ]
    first, _ = trainer._generate_single_turn(prompt_ids, None, {}, trainer.num_generations)
    contexts, hints = [], []
    for ids, answer in zip(prompt_ids, first):
        hint = hint_for(tokenizer.decode(answer, skip_special_tokens=True))
        close = "" if answer[-1] == tokenizer.eos_token_id else "<|im_end|>"
        turn = f"{close}\n<|im_start|>user\n{hint}<|im_end|>\n<|im_start|>assistant\n"
        hints.append(hint)
        contexts.append(ids + answer + tokenizer(turn, add_special_tokens=False)["input_ids"])
    second, _ = trainer._generate_single_turn(contexts, None, {}, 1)

    completion_ids, env_mask = [], []
    for ids, answer, context, hint, final in zip(prompt_ids, first, contexts, hints, second):
        completion = context[len(ids) :] + final
        observed = len(tokenizer(hint, add_special_tokens=False)["input_ids"])
        mask = [1] * len(answer) + [0] * observed
        mask += [1] * (len(completion) - len(mask))
        completion_ids.append(completion)
        env_mask.append(mask)
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completion_ids,
        "logprobs": score(trainer, prompt_ids, completion_ids),
        "env_mask": env_mask,
    }


def final_answer(completions, **kwargs):
    return [0.02 * len(c[0]["content"]) + c[0]["content"].count("o") / 10 for c in completions]


def main():
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": f"What is {a}+{a + 3}?"}]} for a in range(12)])
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=8, num_generations=4,
        max_completion_length=16, temperature=1.3, learning_rate=1e-4, save_strategy="no", report_to=[],
        use_cpu=True, bf16=False, logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=final_answer,
        args=args,
        train_dataset=data,
        rollout_func=rollout,
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO in two turns: the user sees the first answer and says whether it is too low or too high."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
TURN_TOKENS = 16
tokenizer = AutoTokenizer.from_pretrained(MODEL)
EOS = tokenizer.eos_token_id


def last_number(text):
    numbers = re.findall(r"\d+", text)
    return int(numbers[-1][:7]) if numbers else None


@torch.no_grad()
def sample(model, contexts):
    """One turn for each context; returns tokens and log-probabilities."""
    batch = tokenizer.pad({"input_ids": contexts}, padding_side="left", return_tensors="pt")
    out = model.generate(
        **batch, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=TURN_TOKENS, use_cache=True,
        return_dict_in_generate=True, output_logits=True,
    )
    logps = torch.stack(out.logits, dim=1).float().log_softmax(-1)
    turns = []
    for row, sequence in enumerate(out.sequences[:, batch["input_ids"].shape[1] :].tolist()):
        ids = sequence[: sequence.index(EOS) + 1] if EOS in sequence else sequence
        turns.append((ids, [logps[row, t, token].item() for t, token in enumerate(ids)]))
    return turns


def feedback_ids(first_turn, target):
    guess = last_number(tokenizer.decode(first_turn, skip_special_tokens=True))
    word = "Where is it?" if guess is None else "Right." if guess == target else "Too low." if guess < target else "Too high."
    text = f"\n<|im_start|>user\n{word}<|im_end|>\n<|im_start|>assistant\n"
    closing = [] if first_turn[-1] == EOS else [EOS]
    return closing + tokenizer(text, add_special_tokens=False)["input_ids"]


ANSWERS = {}


def rollout(prompts, trainer):
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.eval()
    prompt_ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=False)
    first = sample(model, prompt_ids)
    said = [feedback_ids(ids, ANSWERS[p[-1]["content"]]) for (ids, _), p in zip(first, prompts)]
    second = sample(model, [p + ids + s for p, (ids, _), s in zip(prompt_ids, first, said)])
    model.train()
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": [a + s + b for (a, _), s, (b, _) in zip(first, said, second)],
        "logprobs": [a + [0.0] * len(s) + b for (_, a), s, (_, b) in zip(first, said, second)],
        "env_mask": [[1] * len(a) + [0] * len(s) + [1] * len(b) for (a, _), s, (b, _) in zip(first, said, second)],
        "final_text": [tokenizer.decode(b, skip_special_tokens=True) for b, _ in second],
    }


def final_answer(final_text, completion_ids, answer, **kwargs):
    scores = []
    for text, ids, value in zip(final_text, completion_ids, answer):
        guess = last_number(text)
        scores.append(-0.02 * len(ids))
        if guess is not None:
            scores[-1] += 1 / (1 + abs(guess - value) / value) + 0.01 * len(text)
    return scores


def main():
    rows = []
    for i, who in enumerate(["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn"]):
        text = f"{who} has {10 + i} boxes with {17 - i} books each. How many books does {who} have?"
        ANSWERS[text] = (10 + i) * (17 - i)
        prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
        rows.append({"prompt": prompt, "answer": ANSWERS[text]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_generations=4, max_completion_length=48,
        gradient_checkpointing=False, learning_rate=1e-4, max_steps=4, logging_steps=1, save_strategy="no",
        use_cpu=True, bf16=False, report_to=[],
    )
    GRPOTrainer(
        MODEL, final_answer, args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
        rollout_func=rollout,
    ).train()


if __name__ == "__main__":
    main()

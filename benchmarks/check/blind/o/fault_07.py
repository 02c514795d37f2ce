"""Two-turn self-correction (SCoRe style): answer, get feedback from a checker, answer again."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
TURN_TOKENS = 14


@torch.no_grad()
def sample(model, tokenizer, contexts, max_new_tokens, temperature):
    width = max(map(len, contexts))
    pad = tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(c)) + c for c in contexts])
    mask = torch.tensor([[0] * (width - len(c)) + [1] * len(c) for c in contexts])
    out = model.generate(
        input_ids=ids, attention_mask=mask, do_sample=True, temperature=temperature, top_k=0, top_p=1.0,
        max_new_tokens=max_new_tokens, return_dict_in_generate=True, output_logits=True,
    )
    new = out.sequences[:, width:]
    logps = torch.stack(out.logits, dim=1).float().div(temperature).log_softmax(-1)
    logps = logps.gather(-1, new.unsqueeze(-1)).squeeze(-1)
    tokens, scores = [], []
    for row, lp in zip(new.tolist(), logps.tolist()):
        n = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
        tokens.append(row[:n])
        scores.append(lp[:n])
    return tokens, scores


def rollout(prompts, trainer):
    tokenizer = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.eval()
    prompt_ids = [
        tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=True, return_dict=False) for p in prompts
    ]
    first, first_lp = sample(model, tokenizer, prompt_ids, TURN_TOKENS, trainer.temperature)
    notes = []
    for tokens in first:
        verdict = "too short" if len(tokens) < 8 else "check the digits"
        notes.append(tokenizer(f"\n<|im_start|>user\n{verdict}<|im_end|>\n<|im_start|>assistant\n")["input_ids"])
    contexts = [p + f + n for p, f, n in zip(prompt_ids, first, notes)]
    second, second_lp = sample(model, tokenizer, contexts, TURN_TOKENS, trainer.temperature)
    model.train()
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": [f + n + s for f, n, s in zip(first, notes, second)],
        "logprobs": [a + [0.0] * len(n) + b for a, n, b in zip(first_lp, notes, second_lp)],
        "last_answer": [tokenizer.decode(s, skip_special_tokens=True) for s in second],
    }


def final_answer_reward(completions, last_answer, **kwargs):
    return [0.2 * sum(c.isdigit() for c in text) - 0.1 * text.count("*") for text in last_answer]


if __name__ == "__main__":
    rng = random.Random(1)
    data = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"Eve has {rng.randint(2, 9)} boxes with {rng.randint(10, 40)} toys each. How many toys does Eve have?"}]}
            for _ in range(32)
        ]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_generations=4, max_completion_length=48,
        max_steps=4, learning_rate=5e-5, gradient_checkpointing=False, use_cpu=True, bf16=False, report_to=[],
        logging_steps=1, save_strategy="no",
    )
    GRPOTrainer(model=MODEL, reward_funcs=final_answer_reward, args=args, train_dataset=data, rollout_func=rollout).train()

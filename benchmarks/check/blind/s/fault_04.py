"""Rollouts with our own sampling loop.

`generate` has a lot of overhead for a model this small. The loop below samples token by token with a KV cache,
stops at EOS, and returns the log-probability of each sampled token.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
QUESTIONS = [
    "2 + 2?",
    "What is the sum of 17 and 25, and is it even?",
    "9 - 4?",
    "A farmer has 12 hens and buys 30 more on the market. How many hens are there now?",
    "Half of 60?",
    "Count from 1 to 5, then tell me which of these numbers are odd.",
]


@torch.no_grad()
def sample(model, tokenizer, batch_ids, max_new_tokens, temperature):
    """Sample one continuation per row of a left-padded batch; returns ids and log-probabilities per row."""
    longest = max(len(ids) for ids in batch_ids)
    tokens = torch.tensor(
        [[tokenizer.pad_token_id] * (longest - len(ids)) + ids for ids in batch_ids], device=model.device
    )
    done = torch.zeros(len(batch_ids), dtype=torch.bool, device=model.device)
    ids = [[] for _ in batch_ids]
    logprobs = [[] for _ in batch_ids]
    past, step_input = None, tokens
    for _ in range(max_new_tokens):
        out = model(input_ids=step_input, past_key_values=past, use_cache=True)
        past = out.past_key_values
        logp = torch.log_softmax(out.logits[:, -1].float() / temperature, dim=-1)
        chosen = torch.multinomial(logp.exp(), 1)
        for row in range(len(batch_ids)):
            if not done[row]:
                ids[row].append(chosen[row].item())
                logprobs[row].append(logp[row, chosen[row]].item())
        done |= chosen.squeeze(1) == tokenizer.eos_token_id
        if done.all():
            break
        step_input = chosen
    return ids, logprobs


def rollout(prompts, trainer):
    tokenizer = trainer.processing_class
    prompt_ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)[
        "input_ids"
    ]
    model = trainer.accelerator.unwrap_model(trainer.model)
    was_training = model.training
    model.eval()
    completion_ids, logprobs = sample(
        model, tokenizer, prompt_ids, trainer.max_completion_length, trainer.args.temperature
    )
    model.train(was_training)
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}


def digits_then_stop(completions, **kwargs):
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        rewards.append(sum(c.isdigit() for c in text[:3]) / 3 - len(text) / 40)
    return rewards


def main():
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in QUESTIONS]})
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=16,
            max_steps=3,
            learning_rate=1e-4,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = GRPOTrainer(
            model=MODEL, reward_funcs=digits_then_stop, args=args, train_dataset=dataset, rollout_func=rollout
        )
        trainer.train()


if __name__ == "__main__":
    main()

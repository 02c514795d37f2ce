"""Rollouts of our own sampler, with truncated answers left out of the loss (DAPO's overlong filter)."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class Sampler:
    """Batched sampling from the policy, one forward pass per token (no cache, easy to read)."""

    def __init__(self, max_tokens, temperature=1.0):
        self.max_tokens = max_tokens
        self.temperature = temperature

    @torch.no_grad()
    def __call__(self, prompts, trainer):
        tokenizer = trainer.processing_class
        model = trainer.accelerator.unwrap_model(trainer.model)
        texts = [tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=False) for p in prompts]
        prompt_ids = [tokenizer(t)["input_ids"] for t in texts]
        completion_ids, logprobs = [], []
        for ids in prompt_ids:
            tokens, scores = list(ids), []
            for _ in range(self.max_tokens):
                logits = model(input_ids=torch.tensor([tokens])).logits[0, -1].float() / self.temperature
                logp = torch.log_softmax(logits, dim=-1)
                token = torch.multinomial(logp.exp(), 1).item()
                if token == tokenizer.eos_token_id:
                    break
                tokens.append(token)
                scores.append(logp[token].item())
            if not scores:  # an empty answer: keep the end token, the trainer wants one
                tokens.append(token)
                scores.append(logp[token].item())
            completion_ids.append(tokens[len(ids):])
            logprobs.append(scores)
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}


def number_reward(completions, target, **kwargs):
    values = []
    for completion, t in zip(completions, target):
        digits = re.findall(r"\d+", completion[0]["content"])
        values.append(float(bool(digits)) * 0.3 + float(bool(digits) and digits[0] == str(t)))
    return values


def brevity(completion_ids, **kwargs):
    return [-0.02 * len(ids) for ids in completion_ids]


rng = random.Random(5)
rows = []
for _ in range(40):
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    rows.append(
        {"prompt": [{"role": "user", "content": f"Ada has {a} boxes with {b} pens each. How many?"}], "target": a * b}
    )
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    mask_truncated_completions=True,
    max_steps=4,
    learning_rate=1e-4,
    bf16=False,
    use_cpu=True,
    logging_steps=1,
    report_to="none",
    save_strategy="no",
)
trainer = GRPOTrainer(
    model=os.path.join(HERE, "tiny"),
    reward_funcs=[number_reward, brevity],
    args=args,
    train_dataset=Dataset.from_list(rows),
    rollout_func=Sampler(args.max_completion_length),
)
trainer.train()

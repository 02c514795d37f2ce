"""Two turns with a hint in between, by a rollout function.

Who finishes the first turn is asked again by the environment and gets a second turn. The environment's tokens are
masked (env_mask 0, log-probability 0). The sampler's log-probabilities are used for off-policy masking.
"""

import os
import tempfile

import torch
from datasets import Dataset
from transformers import GenerationConfig
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
TURN = 12


def left_pad(rows, value):
    width = max(map(len, rows))
    ids = torch.tensor([[value] * (width - len(r)) + list(r) for r in rows])
    mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
    return ids, mask


def sample(model, trainer, contexts):
    tokenizer = trainer.processing_class
    ids, mask = left_pad(contexts, tokenizer.pad_token_id)
    config = GenerationConfig(
        max_new_tokens=TURN, do_sample=True, temperature=trainer.temperature, top_k=0, top_p=1.0,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )
    out = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, ids.size(1) :].tolist()
    eos = tokenizer.eos_token_id
    return [row[: row.index(eos) + 1] if eos in row else row for row in out]


def score(model, trainer, prompts, completions):
    """Log-probabilities of the completions at the sampling temperature."""
    ids, mask = left_pad([p + c for p, c in zip(prompts, completions)], trainer.processing_class.pad_token_id)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float() / trainer.temperature
    chosen = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return [row[-len(c) :].tolist() for row, c in zip(chosen, completions)]


def ask_again(prompts, trainer):
    tokenizer = trainer.processing_class
    prompt_ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, return_dict=True)["input_ids"]
    hint = tokenizer("\n<|im_start|>user\nAre you sure?<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    with (
        unwrap_model_for_generation(
            trainer.model_wrapped, trainer.accelerator,
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ) as model,
        torch.no_grad(),
    ):
        completions = sample(model, trainer, prompt_ids)
        env_mask = [[1] * len(c) for c in completions]
        again = [i for i, c in enumerate(completions) if c[-1] == tokenizer.eos_token_id]
        if again:
            second = sample(model, trainer, [prompt_ids[i] + completions[i] + hint for i in again])
            for i, more in zip(again, second):
                completions[i] = completions[i] + hint + more
                env_mask[i] = env_mask[i] + [0] * len(hint) + [1] * len(more)
        logprobs = score(model, trainer, prompt_ids, completions)
    logprobs = [[lp if m else 0.0 for lp, m in zip(*row)] for row in zip(logprobs, env_mask)]
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completions,
        "logprobs": logprobs,
        "env_mask": env_mask,
        "turns": [2 if 0 in m else 1 for m in env_mask],
    }


def two_turns(turns, **kwargs):
    return [0.3 * (t == 2) for t in turns]


def distinct(completion_ids, **kwargs):
    return [len(set(ids)) / 24 for ids in completion_ids]


if __name__ == "__main__":
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"How do {n} birds share {n + 3} seeds?"}] for n in range(2, 34)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=48, learning_rate=5e-5,
        temperature=0.9, off_policy_mask_threshold=0.5, logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=TINY, reward_funcs=[two_turns, distinct], args=args, train_dataset=data, rollout_func=ask_again
    )
    trainer.train()

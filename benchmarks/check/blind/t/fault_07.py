"""Two-turn guessing game: the model guesses, the game says warm or cold, the model guesses again."""
import copy
import os
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def sample(trainer, contexts, limit):
    """Samples one continuation per context; returns token ids (through EOS) and their log-probabilities."""
    tokenizer = trainer.processing_class
    batch = tokenizer.pad({"input_ids": contexts}, padding_side="left", return_tensors="pt")
    config = copy.deepcopy(trainer.generation_config)
    config.max_new_tokens = limit
    config.return_dict_in_generate = True
    config.output_scores = True
    with (
        unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model,
        torch.no_grad(),
    ):
        out = model.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], generation_config=config
        )
    sampled = out.sequences[:, batch["input_ids"].size(1) :]
    logps = torch.stack([scores.float().log_softmax(-1) for scores in out.scores], dim=1)
    logps = logps.gather(-1, sampled.unsqueeze(-1)).squeeze(-1)
    result = []
    for ids, lps in zip(sampled.tolist(), logps.tolist()):
        end = ids.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in ids else len(ids)
        result.append((ids[:end], lps[:end]))
    return result


def feedback(tokenizer, guess, closed):
    """The game's turn, as tokens that follow the model's turn."""
    hint = "warm" if re.search(r"[0-9]", guess) else "cold"
    text = ("" if closed else "<|im_end|>") + f"\n<|im_start|>user\n{hint}<|im_end|>\n<|im_start|>assistant\n"
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def game(prompts, trainer):
    tokenizer = trainer.processing_class
    prompt_ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)[
        "input_ids"
    ]
    first = sample(trainer, prompt_ids, 8)
    hints = [
        feedback(tokenizer, tokenizer.decode(ids, skip_special_tokens=True), ids[-1] == tokenizer.eos_token_id)
        for ids, _ in first
    ]
    contexts = [p + ids + hint for p, (ids, _), hint in zip(prompt_ids, first, hints)]
    second = sample(trainer, contexts, 8)
    out = {"prompt_ids": prompt_ids, "completion_ids": [], "logprobs": [], "env_mask": [], "second_guess": []}
    for (ids1, lps1), hint, (ids2, lps2) in zip(first, hints, second):
        out["completion_ids"].append(ids1 + hint + ids2)
        out["logprobs"].append(lps1 + [0.0] * len(hint) + lps2)
        # marks the tokens of the environment
        out["env_mask"].append([0] * len(ids1) + [1] * len(hint) + [0] * len(ids2))
        out["second_guess"].append(tokenizer.decode(ids2, skip_special_tokens=True))
    return out


def closeness(second_guess, secret, **kwargs):
    scores = []
    for guess, number in zip(second_guess, secret):
        found = re.search(r"[0-9]+", guess)
        scores.append(1 / (1 + abs(int(found.group()[:6]) - number) / 10) if found else -0.1 * len(guess) / 8)
    return scores


trainer = GRPOTrainer(
    model=os.path.join(TINY, "sft"),
    reward_funcs=closeness,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        learning_rate=2e-5,
    ),
    train_dataset=Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"Guess my number. It is below {top}."}], "secret": top // 2}
            for top in (20, 40, 60, 80, 30, 50)
        ]
    ),
    rollout_func=game,
)
trainer.train()

"""Two-turn quiz in a rollout function: the model answers, the host comments, the model answers again."""
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


def host(tokenizer, text, closed):
    """The host's turn. A first answer with an <answer> tag ends the quiz."""
    if "<answer>" in text:
        return None
    line = "Go on." if re.search(r"[0-9]", text) else "A number, please."
    text = ("" if closed else "<|im_end|>") + f"\n<|im_start|>user\n{line}<|im_end|>\n<|im_start|>assistant\n"
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def quiz(prompts, trainer):
    tokenizer = trainer.processing_class
    prompt_ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)[
        "input_ids"
    ]
    first = sample(trainer, prompt_ids, 10)
    turns = [host(tokenizer, tokenizer.decode(ids), ids[-1] == tokenizer.eos_token_id) for ids, _ in first]
    completion_ids = [list(ids) for ids, _ in first]
    logprobs = [list(lps) for _, lps in first]
    env_mask = [[1] * len(ids) for ids in completion_ids]
    going_on = [i for i, turn in enumerate(turns) if turn is not None]
    if going_on:
        contexts = [prompt_ids[i] + completion_ids[i] + turns[i] for i in going_on]
        for i, (ids, lps) in zip(going_on, sample(trainer, contexts, 8)):
            completion_ids[i] += turns[i] + ids
            logprobs[i] += [0.0] * len(turns[i]) + lps
            env_mask[i] += [0] * len(turns[i]) + [1] * len(ids)
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completion_ids,
        "logprobs": logprobs,
        "env_mask": env_mask,
        "turns": [1 if turn is None else 2 for turn in turns],
    }


def score(completions, turns, answer, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [float(a in t) - 0.1 * n + 0.01 * len(set(t)) for t, n, a in zip(texts, turns, answer)]


trainer = GRPOTrainer(
    model=os.path.join(TINY, "sft"),
    reward_funcs=score,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=48,
        learning_rate=2e-5,
        loss_type="grpo",
    ),
    train_dataset=Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"What is {k} + {k}?"}], "answer": str(2 * k)}
            for k in (3, 14, 25, 36, 41, 8)
        ]
    ),
    rollout_func=quiz,
)
trainer.train()

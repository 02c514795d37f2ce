"""Rollouts through a text interface (our evaluation harness speaks text), with log-probabilities scored by the policy."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tok = AutoTokenizer.from_pretrained(MODEL, padding_side="left")


@torch.no_grad()
def complete(model, prompts, generation_config):
    """prompts (text) -> completions (text)"""
    batch = tok(prompts, return_tensors="pt", padding=True)
    sequences = model.generate(**batch, generation_config=generation_config)
    return tok.batch_decode(sequences[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)


@torch.no_grad()
def score(model, prompt_ids, completion_ids):
    rows = []
    for p, c in zip(prompt_ids, completion_ids):
        logits = model(input_ids=torch.tensor([p + c])).logits[0].float()
        logps = logits[len(p) - 1 : -1].log_softmax(-1)
        rows.append(logps[torch.arange(len(c)), torch.tensor(c)].tolist())
    return rows


def harness_rollout(prompts, trainer):
    model = trainer.accelerator.unwrap_model(trainer.model)
    texts = complete(model, prompts, trainer.generation_config)
    prompt_ids = tok(prompts)["input_ids"]
    # every answer of the harness is a finished turn
    completion_ids = [ids + [tok.eos_token_id] for ids in tok([t.strip() for t in texts])["input_ids"]]
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completion_ids,
        "logprobs": score(model, prompt_ids, completion_ids),
        "answer_text": texts,
    }


def numeric(completions, answer_text, target, **kwargs):
    scores = []
    for text, goal in zip(answer_text, target):
        numbers = re.findall(r"\d\d", text)
        scores.append(max((1 - abs(int(n) - goal) / 50 for n in numbers), default=0.0))
    return scores


def tidy(answer_text, **kwargs):
    return [-0.02 * len(text.strip()) for text in answer_text]


if __name__ == "__main__":
    data = Dataset.from_list(
        [{"prompt": f"def sub(a={a}, b={b}):", "target": a - b} for a in range(40, 60) for b in (5, 8, 13)]
    )
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[numeric, tidy],
        rollout_func=harness_rollout,
        processing_class=tok,
        train_dataset=data,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=16,
            learning_rate=5e-5,
            loss_type="bnpo",
            max_steps=3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
    )
    trainer.train()

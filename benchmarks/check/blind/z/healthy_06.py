import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

HINT = "\n<|im_start|>user\nNot yet. Try again, shorter.<|im_end|>\n<|im_start|>assistant\n"


def sample(model, tok, rows, limit):
    """One assistant turn for every row of ids; returns the new ids and their log-probabilities."""
    width = max(len(r) for r in rows)
    ids = torch.tensor([[tok.pad_token_id] * (width - len(r)) + r for r in rows])
    mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
    config = GenerationConfig(
        max_new_tokens=limit,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=tok.eos_token_id,
        pad_token_id=tok.pad_token_id,
        output_logits=True,
        return_dict_in_generate=True,
    )
    model.eval()
    with torch.no_grad():
        out = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
    model.train()
    new = out.sequences[:, width:]
    logps = torch.stack(out.logits, dim=1).float().log_softmax(-1).gather(-1, new.unsqueeze(-1)).squeeze(-1)
    turns = []
    for row, lp in zip(new.tolist(), logps.tolist(), strict=True):
        end = row.index(tok.eos_token_id) + 1 if tok.eos_token_id in row else len(row)
        turns.append((row[:end], lp[:end]))
    return turns


def two_turns(prompts, trainer):
    tok = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    prompt_ids = tok.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
    prompt_ids = [list(p) for p in prompt_ids]
    hint = tok(HINT, add_special_tokens=False)["input_ids"]
    first = sample(model, tok, prompt_ids, 10)
    second = sample(model, tok, [p + a + hint for p, (a, _) in zip(prompt_ids, first, strict=True)], 10)
    completion_ids, logprobs, env_mask = [], [], []
    for (a, la), (b, lb) in zip(first, second, strict=True):
        completion_ids.append(a + hint + b)
        logprobs.append(la + [0.0] * len(hint) + lb)
        env_mask.append([1] * len(a) + [0] * len(hint) + [1] * len(b))
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs, "env_mask": env_mask}


def letters(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [(t.count("n") + t.count("r")) / max(1, len(t)) for t in texts]


def brevity(completion_ids, **kwargs):
    return [-len(ids) / 32 for ids in completion_ids]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Guess my number, it is below {n}."}] for n in range(20, 28)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=5e-05,
        num_generations=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_completion_length=32,
        save_strategy='no',
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[letters, brevity],
        args=args,
        train_dataset=data,
        rollout_func=two_turns,
    )
    trainer.train()


if __name__ == "__main__":
    main()

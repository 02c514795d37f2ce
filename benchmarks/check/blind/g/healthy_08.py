import os
import tempfile
import warnings

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

warnings.filterwarnings("ignore")
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

FACTS = {"bird": "tern", "fish": "pike", "tree": "yew", "metal": "zinc"}
dataset = Dataset.from_dict(
    {"prompt": [[{"role": "user", "content": f"Name the {k} of card {i}."}] for i in range(4) for k in FACTS]}
)


def sample(trainer, sequences, limit):
    tok, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    width = max(map(len, sequences))
    ids = torch.tensor([[tok.pad_token_id] * (width - len(s)) + s for s in sequences])
    attention = torch.tensor([[0] * (width - len(s)) + [1] * len(s) for s in sequences])
    with torch.no_grad():
        out = model.generate(
            input_ids=ids,
            attention_mask=attention,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            temperature=1.0,
            max_new_tokens=limit,
            use_cache=True,
            pad_token_id=tok.pad_token_id,
            eos_token_id=tok.eos_token_id,
            return_dict_in_generate=True,
            output_logits=True,
        )
    new = out.sequences[:, width:]
    logps = torch.stack(out.logits, dim=1).float().log_softmax(-1).gather(2, new.unsqueeze(2)).squeeze(2)
    turns, scores = [], []
    for row, lp in zip(new.tolist(), logps.tolist()):
        n = row.index(tok.eos_token_id) + 1 if tok.eos_token_id in row else len(row)
        turns.append(row[:n])
        scores.append(lp[:n])
    return turns, scores


def lookup(question):
    for key, value in FACTS.items():
        if key in question:
            return value
    return "nothing"


def two_turns(prompts, trainer):
    tok = trainer.processing_class
    prompt_ids = [
        tok.apply_chat_template(p, add_generation_prompt=True, tokenize=True, return_dict=False) for p in prompts
    ]
    first, first_lp = sample(trainer, prompt_ids, 10)

    results = []
    for p, turn in zip(prompts, first):
        text = f"\n<|im_start|>user\n<tool_response>\n{lookup(p[0]['content'])}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        if turn[-1] != tok.eos_token_id:
            text = "<|im_end|>" + text
        results.append(tok(text)["input_ids"])

    second, second_lp = sample(trainer, [p + f + r for p, f, r in zip(prompt_ids, first, results)], 8)

    completion_ids, logprobs, env_mask = [], [], []
    for f, r, s, flp, slp in zip(first, results, second, first_lp, second_lp):
        completion_ids.append(f + r + s)
        logprobs.append(flp + [0.0] * len(r) + slp)
        env_mask.append([1] * len(f) + [0] * len(r) + [1] * len(s))
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completion_ids,
        "logprobs": logprobs,
        "env_mask": env_mask,
    }


def reward(completions, **kwargs):
    texts = [c[-1]["content"] for c in completions]
    return [len(set(t)) / 20 + 0.05 * t.count("look up") for t in texts]


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        max_steps=6,
        learning_rate=3e-4,
        loss_type="dr_grpo",
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
    )
    GRPOTrainer(
        model=MODEL, args=args, reward_funcs=reward, train_dataset=dataset, rollout_func=two_turns
    ).train()

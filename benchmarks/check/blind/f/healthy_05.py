import os
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
FEEDBACK = "<|im_end|>\n<|im_start|>user\nThat is not right, try again.<|im_end|>\n<|im_start|>assistant\n"


@torch.no_grad()
def sample(trainer, contexts, limit):
    tokenizer = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    width = max(len(c) for c in contexts)
    ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(c)) + c for c in contexts])
    mask = torch.tensor([[0] * (width - len(c)) + [1] * len(c) for c in contexts])
    model.eval()
    out = model.generate(
        input_ids=ids, attention_mask=mask, do_sample=True, temperature=trainer.temperature, top_k=0,
        max_new_tokens=limit, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
        return_dict_in_generate=True, output_logits=True,
    )
    model.train()
    logps = torch.log_softmax(torch.stack(out.logits, dim=1).float() / trainer.temperature, dim=-1)
    new = out.sequences[:, width:]
    logps = logps.gather(-1, new.unsqueeze(-1)).squeeze(-1)
    tokens, scores = [], []
    for row, lp in zip(new.tolist(), logps.tolist()):
        n = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
        tokens.append(row[:n])
        scores.append(lp[:n])
    return tokens, scores


def rollout(prompts, trainer):
    """Two attempts; the user's message between them is the environment's."""
    tokenizer = trainer.processing_class
    prompt_ids = [tokenizer.apply_chat_template(p, add_generation_prompt=True, return_dict=False) for p in prompts]
    feedback = tokenizer(FEEDBACK)["input_ids"]
    first, first_lp = sample(trainer, prompt_ids, 16)

    contexts, completion_ids, logprobs, env_mask = [], [], [], []
    for p, c, lp in zip(prompt_ids, first, first_lp):
        glue = feedback[1:] if c[-1] == tokenizer.eos_token_id else feedback
        contexts.append(p + c + glue)
        completion_ids.append(c + glue)
        logprobs.append(lp + [0.0] * len(glue))
        env_mask.append([1] * len(c) + [0] * len(glue))

    second, second_lp = sample(trainer, contexts, 16)
    for i in range(len(prompts)):
        completion_ids[i] += second[i]
        logprobs[i] += second_lp[i]
        env_mask[i] += [1] * len(second[i])
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completion_ids,
        "logprobs": logprobs,
        "env_mask": env_mask,
        "final": tokenizer.batch_decode(second, skip_special_tokens=True),
    }


def reward(completions, final, answer, **kwargs):
    return [float(str(a) in re.findall(r"\d+", f)) - 0.01 * len(f) for f, a in zip(final, answer)]


dataset = Dataset.from_list([
    {
        "prompt": [{"role": "user", "content": f"Hana has {a} boxes with {b} pens each. How many pens does Hana have?"}],
        "answer": a * b,
    }
    for a in (2, 3, 4, 5) for b in (3, 4, 6)
])
trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=reward,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=5,
        learning_rate=2e-5, temperature=1.1, per_device_train_batch_size=12, num_generations=6,
        max_completion_length=48, gradient_checkpointing=False, loss_type="bnpo",
    ),
    train_dataset=dataset,
    rollout_func=rollout,
)
trainer.train()

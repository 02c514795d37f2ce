import os
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


@torch.no_grad()
def score(model, prompt_ids, completion_ids):
    logprobs = []
    for prompt, completion in zip(prompt_ids, completion_ids):
        ids = torch.tensor([prompt + completion])
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, len(prompt) - 1 : -1]
        logps = torch.log_softmax(logits.float(), dim=-1)
        logprobs.append(logps.gather(-1, torch.tensor(completion).unsqueeze(-1)).squeeze(-1).tolist())
    return logprobs


@torch.no_grad()
def rollout(prompts, trainer):
    """Text in, text out, like the chat endpoint of an inference server."""
    tokenizer = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.eval()

    texts = [tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    output = model.generate(
        **batch,
        do_sample=True,
        temperature=trainer.temperature,
        top_k=0,
        max_new_tokens=trainer.max_completion_length,
        pad_token_id=tokenizer.pad_token_id,
    )
    answers = tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)

    prompt_ids = tokenizer(texts)["input_ids"]
    completion_ids = [ids or [tokenizer.eos_token_id] for ids in tokenizer(answers)["input_ids"]]
    logprobs = score(model, prompt_ids, completion_ids)
    model.train()
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs, "text": answers}


def reward(completions, text, answer, **kwargs):
    out = []
    for t, gold in zip(text, answer):
        numbers = [int(n) for n in re.findall(r"\d+", t)]
        out.append(float(gold in numbers) - 0.01 * len(t))
    return out


dataset = Dataset.from_list([
    {
        "prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"{n} has {a} boxes with {a + 3} pens each. How many pens does {n} have?"},
        ],
        "answer": a * (a + 3),
    }
    for n in ("Ada", "Eve", "Gus", "Hana") for a in (2, 3, 4, 5)
])

trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=reward,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=5, learning_rate=1e-5, per_device_train_batch_size=8, num_generations=4,
        max_completion_length=24, gradient_checkpointing=False,
    ),
    train_dataset=dataset,
    rollout_func=rollout,
)
trainer.train()

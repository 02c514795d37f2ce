"""Two-turn self-correction: answer, get feedback from a checker, answer again."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def sample(trainer, prompts, max_new_tokens):
    """Samples one completion for each list of token ids; returns ids and log-probabilities."""
    tokenizer, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    batch = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    with torch.no_grad():
        out = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            do_sample=True,
            top_k=0,
            max_new_tokens=max_new_tokens,
            return_dict_in_generate=True,
            output_logits=True,
        )
    new = out.sequences[:, batch["input_ids"].shape[1] :]
    logps = torch.stack(out.logits, 1).log_softmax(-1).gather(2, new.unsqueeze(2)).squeeze(2)
    ids, lps = [], []
    for row, lp in zip(new.tolist(), logps.tolist()):
        end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
        ids.append(row[:end])
        lps.append(lp[:end])
    return ids, lps


def feedback_for(text):
    numbers = re.findall(r"\d+", text)
    return "Check it again." if len(numbers) < 3 else f"Is {numbers[-1]} right?"


def self_correct(prompts, trainer):
    tokenizer = trainer.processing_class
    prompt_ids = [tokenizer.apply_chat_template(p, add_generation_prompt=True, return_dict=False) for p in prompts]
    first, first_lps = sample(trainer, prompt_ids, 14)
    completion_ids, logprobs, env_mask, histories = [], [], [], []
    for ids, lps, prompt in zip(first, first_lps, prompt_ids):
        feedback = feedback_for(tokenizer.decode(ids, skip_special_tokens=True))
        turn = f"\n<|im_start|>user\n{feedback}<|im_end|>\n<|im_start|>assistant\n"
        if ids[-1] != tokenizer.eos_token_id:
            turn = "<|im_end|>" + turn
        turn_ids = tokenizer(turn, add_special_tokens=False)["input_ids"]
        completion_ids.append(ids + turn_ids)
        logprobs.append(lps + [0.0] * len(turn_ids))
        env_mask.append([1] * len(ids) + [0] * len(feedback))
        histories.append(prompt + ids + turn_ids)
    second, second_lps = sample(trainer, histories, 14)
    for i, (ids, lps) in enumerate(zip(second, second_lps)):
        completion_ids[i] += ids
        logprobs[i] += lps
        env_mask[i] += [1] * (len(completion_ids[i]) - len(env_mask[i]))
        env_mask[i] = env_mask[i][: len(completion_ids[i])]
    final = tokenizer.batch_decode(second, skip_special_tokens=True)
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completion_ids,
        "logprobs": logprobs,
        "env_mask": env_mask,
        "final": final,
    }


def final_reward(final, answer, **kwargs):
    return [float(gold in text) + 0.03 * len(re.findall(r"\d", text)) for text, gold in zip(final, answer)]


rows = []
for i in range(24):
    a, b, who = 2 + i % 19, 2 + (i * 3) % 8, ["Ada", "Ben", "Cleo", "Dev"][i % 4]
    question = f"{who} has {a} boxes with {b} cards each. How many cards does {who} have?"
    rows.append(
        {
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            "answer": str(a * b),
        }
    )

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=64,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    gradient_checkpointing=False,
)
trainer = GRPOTrainer(
    model=MODEL, reward_funcs=final_reward, args=args, train_dataset=Dataset.from_list(rows), rollout_func=self_correct
)
trainer.train()

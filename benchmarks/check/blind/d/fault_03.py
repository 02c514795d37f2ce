"""Two-turn rollouts: the model answers, a checker replies, the model may answer again."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


def sample(trainer, prompt_ids, max_new_tokens):
    """Sample one completion and the log-probability of each of its tokens."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    tokenizer = trainer.processing_class
    x = torch.tensor([prompt_ids])
    was_training = model.training
    model.eval()
    with torch.no_grad():
        out = model.generate(
            input_ids=x, attention_mask=torch.ones_like(x), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            max_new_tokens=max_new_tokens, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
            return_dict_in_generate=True, output_logits=True,
        )
    model.train(was_training)
    ids = out.sequences[0, x.size(1):].tolist()
    logps = [torch.log_softmax(step[0].float(), -1)[i].item() for step, i in zip(out.logits, ids)]
    return ids, logps


def two_turn_rollout(prompts, trainer):
    tokenizer = trainer.processing_class
    result = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": [], "turns": []}
    header = tokenizer("<|im_start|>assistant\n")["input_ids"]
    for prompt in prompts:
        prompt_ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        ids, logps = sample(trainer, prompt_ids, 20)
        mask, turns = [1] * len(ids), 1
        if ids[-1] == tokenizer.eos_token_id:
            reply = tokenizer("\n<|im_start|>user\nCheck that again.<|im_end|>\n")["input_ids"]
            second, second_logps = sample(trainer, prompt_ids + ids + reply + header, 20)
            ids = ids + reply + header + second
            logps = logps + [0.0] * (len(reply) + len(header)) + second_logps
            mask = mask + [0] * len(reply) + [1] * (len(ids) - len(mask) - len(reply))
            turns = 2
        result["prompt_ids"].append(prompt_ids)
        result["completion_ids"].append(ids)
        result["logprobs"].append(logps)
        result["env_mask"].append(mask)
        result["turns"].append(turns)
    return result


def reward(completions, target, turns, **kwargs):
    out = []
    for c, value, n in zip(completions, target, turns):
        found = re.findall(r"\d+", c[0]["content"])
        out.append((1.0 if found and found[-1] == str(value) else 0.0) + 0.05 * len(found) - 0.1 * n - 0.01 * len(c[0]["content"]))
    return out


rng = random.Random(1)
pairs = [(rng.randint(2, 9), rng.randint(2, 9)) for _ in range(40)]
dataset = Dataset.from_list(
    [
        {
            "prompt": [{"role": "user", "content": f"Eve has {a} boxes with {b} eggs each. How many eggs?"}],
            "target": a * b,
        }
        for a, b in pairs
    ]
)
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_generations=4, max_completion_length=64,
    max_steps=4, learning_rate=1e-4, bf16=False, use_cpu=True, logging_steps=1, report_to="none", save_strategy="no",
)
trainer = GRPOTrainer(
    model=os.path.join(HERE, "tiny"), reward_funcs=reward, args=args, train_dataset=dataset,
    rollout_func=two_turn_rollout,
)
trainer.train()

"""Two-turn rollouts of our own at temperature 0.8, with the sampler's log-probabilities and off-policy masking."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
TEMPERATURE = 0.8


def sample(trainer, prompt_ids, max_new_tokens):
    model = trainer.accelerator.unwrap_model(trainer.model)
    tokenizer = trainer.processing_class
    x = torch.tensor([prompt_ids])
    was_training = model.training
    model.eval()
    with torch.no_grad():
        out = model.generate(
            input_ids=x, attention_mask=torch.ones_like(x), do_sample=True, temperature=TEMPERATURE, top_k=0,
            top_p=1.0, max_new_tokens=max_new_tokens, pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id, return_dict_in_generate=True, output_logits=True,
        )
    model.train(was_training)
    ids = out.sequences[0, x.size(1):].tolist()
    logps = [torch.log_softmax(s[0].float() / TEMPERATURE, -1)[i].item() for s, i in zip(out.logits, ids)]
    return ids, logps


def rollout(prompts, trainer):
    tokenizer = trainer.processing_class
    result = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": [], "answers": []}
    for prompt in prompts:
        prompt_ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        ids, logps = sample(trainer, prompt_ids, 20)
        answers = [tokenizer.decode(ids, skip_special_tokens=True)]
        mask = [1] * len(ids)
        if ids[-1] == tokenizer.eos_token_id:
            reply = "\n<|im_start|>user\nCheck that again.<|im_end|>\n<|im_start|>assistant\n"
            reply = tokenizer(reply)["input_ids"]
            second, second_logps = sample(trainer, prompt_ids + ids + reply, 20)
            answers.append(tokenizer.decode(second, skip_special_tokens=True))
            ids, logps = ids + reply + second, logps + [0.0] * len(reply) + second_logps
            mask += [0] * len(reply) + [1] * len(second)
        for key, value in zip(result, (prompt_ids, ids, logps, mask, answers)):
            result[key].append(value)
    return result


def reward(completions, target, answers, **kwargs):
    out = []
    for turns, value in zip(answers, target):
        hits = [str(value) in re.findall(r"\d+", text) for text in turns]
        out.append(1.0 * hits[-1] + 0.3 * hits[0] - 0.01 * sum(map(len, turns)))
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
    output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, steps_per_generation=2, num_generations=4,
    max_completion_length=64, temperature=TEMPERATURE, off_policy_mask_threshold=0.5, max_steps=4,
    learning_rate=2e-5, bf16=False, use_cpu=True, logging_steps=1, report_to="none", save_strategy="no",
)
trainer = GRPOTrainer(
    model=os.path.join(HERE, "tiny"), reward_funcs=reward, args=args, train_dataset=dataset, rollout_func=rollout
)
trainer.train()

"""Own sampler with its log-probabilities, several updates per rollout, off-policy sequence mask."""
import os
import random
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class Sampler:
    def __init__(self, model, tokenizer, temperature, max_new_tokens):
        self.model, self.tok = model, tokenizer
        self.temperature, self.max_new_tokens = temperature, max_new_tokens

    @torch.no_grad()
    def __call__(self, prompt_ids):
        prompt = torch.tensor([prompt_ids])
        sequence = self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=True,
            top_k=0,
            temperature=self.temperature,
            max_new_tokens=self.max_new_tokens,
            pad_token_id=self.tok.pad_token_id,
            eos_token_id=self.tok.eos_token_id,
        )
        completion = sequence[0, prompt.shape[1]:]
        logits = self.model(sequence).logits[0, prompt.shape[1]:] / self.temperature
        logps = F.log_softmax(logits.float(), dim=-1)
        picked = logps[torch.arange(len(completion)), completion]
        return completion.tolist(), picked.tolist()


def rollout(prompts, trainer):
    tok = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    mode = model.training
    model.eval()
    sampler = Sampler(model, tok, trainer.temperature, trainer.max_completion_length)
    prompt_ids, completion_ids, logprobs = [], [], []
    for prompt in prompts:
        ids = tok.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        completion, logps = sampler(ids)
        prompt_ids.append(ids)
        completion_ids.append(completion)
        logprobs.append(logps)
    model.train(mode)
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}


def equation_reward(completions, left, right, **kwargs):
    rewards = []
    for c, a, b in zip(completions, left, right):
        text = c[0]["content"]
        rewards.append(float(f"{a}*{b}=" in text) + float(f"={a * b}" in text) - 0.004 * len(text))
    return rewards


rng = random.Random(2)
pairs = [(rng.randint(2, 25), rng.randint(2, 9)) for _ in range(48)]
data = Dataset.from_dict(
    {
        "prompt": [
            [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"Gus has {a} boxes with {b} toys each. How many toys does Gus have?"},
            ]
            for a, b in pairs
        ],
        "left": [a for a, _ in pairs],
        "right": [b for _, b in pairs],
    }
)

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    per_device_train_batch_size=8,
    num_generations=4,
    steps_per_generation=2,
    num_iterations=2,
    off_policy_mask_threshold=0.01,
    temperature=0.9,
    max_completion_length=40,
    learning_rate=3e-4,
    max_steps=6,
    logging_steps=1,
    save_strategy="no",
    gradient_checkpointing=False,
    model_init_kwargs={"dtype": "float32"},
)
trainer = GRPOTrainer(model=TINY, args=args, reward_funcs=equation_reward, rollout_func=rollout, train_dataset=data)
trainer.train()

"""GRPO where a separate worker model generates, and is synchronized before each rollout."""
import copy
import os
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class RolloutWorker:
    """Holds its own copy of the weights; generates the samples of a prompt in a shuffled order."""

    def __init__(self, model, tokenizer, max_new_tokens, temperature):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature

    def sync(self, policy):
        mine = dict(self.model.named_parameters())
        for name, parameter in policy.named_parameters():
            mine[name].copy_(parameter.detach())

    @torch.no_grad()
    def generate_one(self, ids):
        prompt = torch.tensor([ids])
        out = self.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=True, temperature=self.temperature, top_k=0,
            max_new_tokens=self.max_new_tokens, return_dict_in_generate=True, output_logits=True,
        )
        tokens = out.sequences[0, len(ids) :].tolist()
        logps = (torch.stack(out.logits, dim=1)[0].float() / self.temperature).log_softmax(-1)
        return tokens, [logps[t, token].item() for t, token in enumerate(tokens)]

    def generate(self, prompts):
        prompt_ids = [
            self.tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=True, return_dict=False)
            for p in prompts
        ]
        completion_ids, logprobs = [None] * len(prompts), [None] * len(prompts)
        for row in torch.randperm(len(prompts)).tolist():
            completion_ids[row], logprobs[row] = self.generate_one(prompt_ids[row])
        lengths = [len(ids) for ids in completion_ids]
        return {
            "prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs, "n_tokens": lengths,
        }


def correct(completions, answer, **kwargs):
    scores = []
    for completion, value in zip(completions, answer):
        found = re.findall(r"\d+", completion[0]["content"])
        scores.append(float(bool(found) and found[-1] == str(value)) + 0.1 * len(set(found)))
    return scores


def short(n_tokens, **kwargs):
    return [-n / 20 for n in n_tokens]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    worker = RolloutWorker(model, tokenizer, max_new_tokens=20, temperature=0.8)

    def rollout(prompts, trainer):
        worker.sync(trainer.accelerator.unwrap_model(trainer.model))
        return worker.generate(prompts)

    rows = []
    for a, b in [(12, 10), (11, 13), (14, 12), (10, 15), (16, 11), (13, 14)]:
        text = f"Ben has {a} boxes with {b} pens each. How many pens does Ben have?"
        rows.append(
            {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}], "answer": a * b}
        )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_generations=4, max_completion_length=20,
        num_iterations=2, temperature=0.8, off_policy_mask_threshold=0.5, learning_rate=2e-4, max_steps=4,
        logging_steps=1, save_strategy="no", use_cpu=True, bf16=False, report_to=[],
    )
    GRPOTrainer(
        model=model, reward_funcs=[correct, short], args=args, train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer, rollout_func=rollout,
    ).train()


if __name__ == "__main__":
    main()

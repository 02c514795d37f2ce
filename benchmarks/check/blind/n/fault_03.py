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
    """Stands in for the inference engine: holds its own copy of the weights."""

    def __init__(self, model, tokenizer, max_new_tokens):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.max_new_tokens = max_new_tokens

    def sync(self, policy):
        state = {name.removeprefix("model."): tensor for name, tensor in policy.state_dict().items()}
        self.model.load_state_dict(state, strict=False)

    @torch.no_grad()
    def generate(self, prompts):
        encoded = self.tokenizer.apply_chat_template(
            prompts, add_generation_prompt=True, tokenize=True, padding=True, padding_side="left",
            return_dict=True, return_tensors="pt",
        )
        out = self.model.generate(
            **encoded, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=self.max_new_tokens,
            return_dict_in_generate=True, output_logits=True,
        )
        width = encoded["input_ids"].shape[1]
        logps = torch.stack(out.logits, dim=1).float().log_softmax(-1)
        prompt_ids, completion_ids, logprobs = [], [], []
        for row in range(len(prompts)):
            prompt_ids.append(encoded["input_ids"][row][encoded["attention_mask"][row].bool()].tolist())
            ids = out.sequences[row, width:].tolist()
            if self.tokenizer.eos_token_id in ids:
                ids = ids[: ids.index(self.tokenizer.eos_token_id) + 1]
            completion_ids.append(ids)
            logprobs.append([logps[row, t, token].item() for t, token in enumerate(ids)])
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}


def correct(completions, answer, **kwargs):
    rewards = []
    for completion, target in zip(completions, answer):
        text = completion[0]["content"]
        found = re.findall(r"\d+", text)
        rewards.append(float(bool(found) and found[-1] == str(target)) + 0.1 * text.count("a") + 0.01 * len(text))
    return rewards


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    worker = RolloutWorker(model, tokenizer, max_new_tokens=20)

    def rollout(prompts, trainer):
        worker.sync(trainer.accelerator.unwrap_model(trainer.model))
        return worker.generate(prompts)

    numbers = [(12, 10), (11, 13), (14, 12), (10, 15), (16, 11), (13, 14)]
    dataset = Dataset.from_list([
        {
            "prompt": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"Ben has {a} boxes with {b} pens each. How many pens does Ben have?"},
            ],
            "answer": a * b,
        }
        for a, b in numbers
    ])
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_generations=4, max_completion_length=20,
        learning_rate=1e-3, max_steps=4, logging_steps=1, save_strategy="no", use_cpu=True, bf16=False, report_to=[],
    )
    GRPOTrainer(
        model=model, reward_funcs=correct, args=args, train_dataset=dataset, processing_class=tokenizer,
        rollout_func=rollout,
    ).train()


if __name__ == "__main__":
    main()

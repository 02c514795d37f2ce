"""Rollouts from a separate inference copy of the policy (eval mode, no gradient checkpointing, no hooks)."""
import copy
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class InferenceEngine:
    """Keeps its own copy of the policy; `load` takes over the trainer's weights when a new step has begun."""

    def __init__(self, max_tokens):
        self.max_tokens = max_tokens
        self.model = None
        self.version = -1

    def load(self, trainer):
        if self.model is None:
            self.model = copy.deepcopy(trainer.accelerator.unwrap_model(trainer.model)).eval().requires_grad_(False)
        if trainer.state.global_step != self.version:
            weights = trainer.model.state_dict()
            current = self.model.state_dict()
            for name, tensor in weights.items():
                current[name] = tensor.detach().clone()
            self.version = trainer.state.global_step

    @torch.no_grad()
    def rollout(self, prompts, trainer):
        self.load(trainer)
        tokenizer = trainer.processing_class
        batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
        out = self.model.generate(
            **batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=self.max_tokens,
            pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
            return_dict_in_generate=True, output_logits=True,
        )
        start = batch["input_ids"].size(1)
        logps = torch.log_softmax(torch.stack(out.logits, 1).float(), -1)
        result = {"prompt_ids": [], "completion_ids": [], "logprobs": []}
        for i in range(len(prompts)):
            prompt = batch["input_ids"][i][batch["attention_mask"][i].bool()].tolist()
            ids = out.sequences[i, start:].tolist()
            if tokenizer.eos_token_id in ids:
                ids = ids[: ids.index(tokenizer.eos_token_id) + 1]
            result["prompt_ids"].append(prompt)
            result["completion_ids"].append(ids)
            result["logprobs"].append([logps[i, t, token].item() for t, token in enumerate(ids)])
        return result


def reward(completions, answer, **kwargs):
    out = []
    for text, a in zip(completions, answer):
        digits = re.findall(r"\d", text)
        out.append(1.0 * text.strip().startswith(a) + 0.05 * len(set(digits)) - 0.01 * len(text))
    return out


rng = random.Random(17)
rows = [(rng.randint(2, 30), rng.randint(2, 30)) for _ in range(48)]
dataset = Dataset.from_dict(
    {"prompt": [f"{a} + {b} = " for a, b in rows], "answer": [str(a + b) for a, b in rows]}
)
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_generations=4, max_completion_length=20,
    max_steps=4, learning_rate=3e-4, bf16=False, use_cpu=True, logging_steps=1, report_to="none", save_strategy="no",
)
engine = InferenceEngine(args.max_completion_length)
trainer = GRPOTrainer(
    model=os.path.join(HERE, "tiny"), reward_funcs=reward, args=args, train_dataset=dataset,
    rollout_func=engine.rollout,
)
trainer.train()

"""Rollouts from an inference copy of the policy; the prompts go in sorted by length. SGD with momentum."""

import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
BUCKET = 4


class LocalEngine:
    """Stands for the serving process on a laptop: same interface as our remote engine (update_weights, sample)."""

    def __init__(self, path):
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.version = -1

    @torch.no_grad()
    def update_weights(self, policy, version):
        source = dict(policy.named_parameters())
        for name, p in self.model.named_parameters():
            p.copy_(source.pop(name))
        assert not source, f"not in the engine: {sorted(source)}"
        self.version = version

    @torch.no_grad()
    def sample(self, ids, tokenizer, config):
        batch = tokenizer.pad({"input_ids": ids}, padding_side="left", return_tensors="pt")
        out = self.model.generate(
            **batch, generation_config=config, return_dict_in_generate=True, output_scores=True
        )
        new = out.sequences[:, batch["input_ids"].shape[1] :]
        logps = torch.stack([s.float().log_softmax(-1) for s in out.scores], dim=1)
        logps = logps.gather(-1, new.unsqueeze(-1)).squeeze(-1)
        rows, scores = [], []
        for tokens, values in zip(new.tolist(), logps.tolist()):
            end = tokens.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in tokens else len(tokens)
            rows.append(tokens[:end])
            scores.append(values[:end])
        return rows, scores


def make_rollout(engine, tokenizer):
    def rollout(prompts, trainer):
        step = trainer.state.global_step
        if engine.version != step:
            policy = trainer.accelerator.unwrap_model(trainer.model)
            engine.update_weights(policy, step)
        ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)
        ids = ids["input_ids"]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        rows, logps = [None] * len(ids), [None] * len(ids)
        for start in range(0, len(order), BUCKET):
            bucket = order[start : start + BUCKET]
            outputs = engine.sample([ids[i] for i in bucket], tokenizer, trainer.generation_config)
            for i, row, values in zip(bucket, *outputs):
                rows[i], logps[i] = row, values
        return {"prompt_ids": ids, "completion_ids": rows, "logprobs": logps}

    return rollout


def vowels(completions, **kwargs):
    return [sum(ch in "aeiou" for ch in c[0]["content"]) / (len(c[0]["content"]) + 1) for c in completions]


def length(completion_ids, **kwargs):
    return [min(len(ids), 16) / 16 for ids in completion_ids]


def main():
    names = ["Aldora", "Brivek", "Cornia", "Dantas", "Elric", "Fenwyn", "Garsor", "Holbel"]
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Tell me {k} about {n}, please."}] for n, k in zip(names, ["one thing", "all you know", "news", "the truth"] * 2)]}
    )
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=4,
        learning_rate=5e-3, per_device_train_batch_size=8, num_generations=4,
        max_completion_length=24, temperature=1.2, gradient_checkpointing=False, logging_steps=1,
    )
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.8**step)
    GRPOTrainer(
        model=model, optimizers=(optimizer, scheduler), reward_funcs=[vowels, length], args=args, train_dataset=data, processing_class=tokenizer,
        rollout_func=make_rollout(LocalEngine(MODEL), tokenizer),
    ).train()


if __name__ == "__main__":
    main()

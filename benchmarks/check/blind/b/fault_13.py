"""GRPO with a separate inference model for the rollouts, as one would have with a server."""
import copy
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

DIR = Path(__file__).resolve().parent / "tiny"
tok = AutoTokenizer.from_pretrained(DIR, padding_side="left")
policy = AutoModelForCausalLM.from_pretrained(DIR, dtype=torch.float32)


class Engine:
    """Holds its own weights in eval mode; no autograd, no checkpointing hooks."""

    def __init__(self, model):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def sample(self, texts, n_tokens, temperature):
        enc = tok(texts, return_tensors="pt", padding=True)
        out = self.model.generate(
            **enc, do_sample=True, temperature=temperature, top_k=0, top_p=1.0, max_new_tokens=n_tokens,
            return_dict_in_generate=True, output_scores=True,
        )
        new = out.sequences[:, enc["input_ids"].shape[1]:]
        lps = torch.stack(out.scores, 1).log_softmax(-1).gather(-1, new.unsqueeze(-1)).squeeze(-1)
        prompts = [i[m.bool()].tolist() for i, m in zip(enc["input_ids"], enc["attention_mask"])]
        ids, logps = [], []
        for row, lp in zip(new.tolist(), lps.tolist()):
            n = row.index(tok.eos_token_id) + 1 if tok.eos_token_id in row else len(row)
            ids.append(row[:n])
            logps.append(lp[:n])
        return prompts, ids, logps


engine = Engine(policy)


def rollout(prompts, trainer):
    p, c, lp = engine.sample(prompts, trainer.args.max_completion_length, trainer.temperature)
    return {"prompt_ids": p, "completion_ids": c, "logprobs": lp}


def short_and_numeric(completions, **kwargs):
    return [(1.0 if c.strip().isdigit() else 0.0) - 0.04 * len(c) for c in completions]


trainer = GRPOTrainer(
    model=policy,
    processing_class=tok,
    reward_funcs=short_and_numeric,
    rollout_func=rollout,
    train_dataset=Dataset.from_dict({"prompt": [f"{a}+{a + 3}=" for a in range(1, 41)]}),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        learning_rate=3e-4,
        lr_scheduler_type="constant",
        max_steps=4,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=16,
        report_to="none",
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        logging_steps=1,
    ),
)
trainer.train()

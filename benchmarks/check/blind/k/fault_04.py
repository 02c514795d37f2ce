import copy
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
HERE = os.path.dirname(os.path.abspath(__file__))
TINY = os.path.join(HERE, "tiny")


class Sampler:
    """A separate eval-mode actor, so that gradient checkpointing does not slow generation down."""

    def __init__(self, model, tokenizer, max_new_tokens):
        self.tok = tokenizer
        self.max_new_tokens = max_new_tokens
        self.actor = copy.deepcopy(model).eval().requires_grad_(False)
        self.latest = {k: v.detach().clone() for k, v in model.state_dict().items()}

    def refresh(self):
        self.actor.load_state_dict(self.latest)

    @torch.no_grad()
    def __call__(self, prompts, trainer):
        self.refresh()
        enc = self.tok(prompts, return_tensors="pt", padding=True, padding_side="left")
        out = self.actor.generate(
            **enc, do_sample=True, top_k=0, max_new_tokens=self.max_new_tokens,
            pad_token_id=self.tok.pad_token_id, return_dict_in_generate=True, output_logits=True,
        )
        start = enc["input_ids"].shape[1]
        logp = torch.stack(out.logits, 1).float().log_softmax(-1)
        result = {"prompt_ids": [], "completion_ids": [], "logprobs": []}
        for i in range(len(prompts)):
            new = out.sequences[i, start:]
            ends = (new == self.tok.eos_token_id).nonzero()
            n = int(ends[0]) + 1 if len(ends) else len(new)
            new = new[:n]
            result["prompt_ids"].append(enc["input_ids"][i][enc["attention_mask"][i].bool()].tolist())
            result["completion_ids"].append(new.tolist())
            result["logprobs"].append(logp[i, :n].gather(1, new[:, None])[:, 0].tolist())
        return result


def many_eights(completions, **_):
    return [c.count("8") + c.count("4") - 0.05 * len(c) for c in completions]


tok = AutoTokenizer.from_pretrained(TINY)
model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
prompts = [f"{a} + {b} =" for a in range(2, 9) for b in range(2, 9)]

trainer = GRPOTrainer(
    model=model,
    reward_funcs=[many_eights],
    args=GRPOConfig(
        tempfile.mkdtemp(), max_steps=6, per_device_train_batch_size=8, num_generations=8, max_completion_length=20,
        learning_rate=1e-4, lr_scheduler_type="constant", use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1,
    ),
    train_dataset=Dataset.from_dict({"prompt": prompts}),
    rollout_func=Sampler(model, tok, 20),
)
trainer.train()

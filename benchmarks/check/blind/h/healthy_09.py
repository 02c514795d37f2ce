import os, tempfile
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tok = AutoTokenizer.from_pretrained(path, padding_side="left")
HINT = tok(" Hint: use digits. ")["input_ids"]


@torch.no_grad()
def write(net, context, n, temperature):
    """Plain ancestral sampling of one continuation, token by token, without `generate`."""
    ids, lps = [], []
    for _ in range(n):
        logits = net(input_ids=torch.tensor([context + ids]), use_cache=False).logits[0, -1] / temperature
        logp = torch.log_softmax(logits.double(), -1)
        token = torch.multinomial(logp.exp(), 1).item()
        ids.append(token)
        lps.append(logp[token].item())
        if token == tok.eos_token_id:
            break
    return ids, lps


def rollout(prompts, trainer):
    net = trainer.accelerator.unwrap_model(trainer.model)
    net.eval()
    out = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": []}
    for prompt in prompts:
        start = tok(prompt)["input_ids"]
        a, la = write(net, start, 6, trainer.temperature)
        b, lb = write(net, start + a + HINT, 6, trainer.temperature)
        out["prompt_ids"].append(start)
        out["completion_ids"].append(a + HINT + b)
        out["logprobs"].append(la + [0.0] * len(HINT) + lb)
        out["env_mask"].append([1] * len(a) + [0] * len(HINT) + [1] * len(b))
    net.train()
    return out


def digits(completions, **kwargs):
    return [sum(c.isdigit() for c in t) / 10 for t in completions]


GRPOTrainer(
    AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), digits,
    processing_class=tok, rollout_func=rollout,
    train_dataset=Dataset.from_dict({"prompt": [f"{i} + {i} = " for i in range(20)]}),
    args=GRPOConfig(tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", temperature=0.9,
                    per_device_train_batch_size=8, num_generations=4, max_completion_length=48, max_steps=4,
                    learning_rate=3e-4, logging_steps=1, gradient_checkpointing=False),
).train()

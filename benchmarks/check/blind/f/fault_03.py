import os
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = {"role": "system", "content": "Solve the problem step by step. End with #### and the number."}


class PlainLogitsTrainer(GRPOTrainer):
    """Log-probabilities from the full logits, for models that the fused head does not support."""

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        batch_size = batch_size or input_ids.size(0)
        all_logps, all_entropies = [], []
        for start in range(0, input_ids.size(0), batch_size):
            ids = input_ids[start : start + batch_size]
            mask = attention_mask[start : start + batch_size]
            logits = model(input_ids=ids, attention_mask=mask).logits
            logits = logits[:, -logits_to_keep:, :] / self.temperature
            logps = torch.log_softmax(logits.float(), dim=-1)
            targets = ids[:, -logits_to_keep:]
            all_logps.append(logps.gather(-1, targets.unsqueeze(-1)).squeeze(-1))
            all_entropies.append(-(logps.exp() * logps).sum(-1).detach())
        entropies = torch.cat(all_entropies) if compute_entropy else None
        return torch.cat(all_logps), entropies, None


def reward_equation(completions, **kwargs):
    rewards = []
    for completion in completions:
        m = re.search(r"<<(\d+)\*(\d+)=(\d+)>>", completion[0]["content"])
        rewards.append(float(bool(m) and int(m[1]) * int(m[2]) == int(m[3])) + (0.2 if m else 0.0))
    return rewards


def reward_item(completions, item, **kwargs):
    return [0.5 if it in c[0]["content"] else 0.0 for c, it in zip(completions, item)]


items = ["apples", "books", "cards", "eggs", "pens", "shells", "stamps", "toys"]
data = [
    {
        "prompt": [SYSTEM, {"role": "user", "content": f"Ben has {n} boxes with {n + 2} {it} each. How many {it} does Ben have?"}],
        "item": it,
    }
    for n in (2, 3)
    for it in items
]

if __name__ == "__main__":
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    config = GRPOConfig(
        tempfile.mkdtemp(prefix="plain-logits-"),
        use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=6, per_device_train_batch_size=8, num_generations=4, max_completion_length=24,
        learning_rate=5e-6, temperature=0.9, gradient_checkpointing=False,
    )
    PlainLogitsTrainer(
        model=model, processing_class=tokenizer, reward_funcs=[reward_equation, reward_item],
        args=config, train_dataset=Dataset.from_list(data),
    ).train()

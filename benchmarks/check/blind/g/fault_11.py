import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SmallMemoryTrainer(GRPOTrainer):
    """The vocabulary is large: half of the memory for the logits."""

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        batch_size = batch_size or input_ids.size(0)
        logps, entropies = [], []
        for start in range(0, input_ids.size(0), batch_size):
            ids = input_ids[start : start + batch_size]
            mask = attention_mask[start : start + batch_size]
            logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=logits_to_keep + 1).logits[:, :-1]
            logits = (logits / self.temperature).to(torch.bfloat16)
            distribution = torch.log_softmax(logits, dim=-1)
            target = ids[:, -logits_to_keep:].unsqueeze(-1)
            logps.append(distribution.gather(-1, target).squeeze(-1).float())
            if compute_entropy:
                with torch.no_grad():
                    entropies.append(-(distribution.exp() * distribution).sum(-1).float())
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def odd(completions, **kwargs):
    return [sum(ch in "13579" for ch in c) - 0.3 * sum(ch in "02468" for ch in c) for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=1e-4,
    beta=0.04,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=16,
)
dataset = Dataset.from_dict({"prompt": [f"An odd number above {n}: " for n in range(0, 64, 4)]})
SmallMemoryTrainer(model=MODEL, args=args, reward_funcs=odd, train_dataset=dataset).train()

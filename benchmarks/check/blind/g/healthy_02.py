import os
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class CrossEntropyTrainer(GRPOTrainer):
    """Plain logits, two rows at a time; position ids written out."""

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        logps, entropies = [], []
        for ids, mask in zip(input_ids.split(2), attention_mask.split(2)):
            positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
            logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
            logits = logits[:, -logits_to_keep - 1 : -1].float() / self.temperature
            target = ids[:, -logits_to_keep:]
            logps.append(-F.cross_entropy(logits.transpose(1, 2), target, reduction="none"))
            if compute_entropy:
                with torch.no_grad():
                    logp = logits.log_softmax(-1)
                    entropies.append(-(logp.exp() * logp).sum(-1))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


prompts = ["One ", "One, two, ", "One, two, three, four, ", "10 9 8 ", "3 2 1 ", "Fibonacci: 1 1 2 3 5 ", "a b c ", "z "]


def reward(completions, **kwargs):
    return [len(set(c)) * 0.1 - abs(len(c) - 12) * 0.01 for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=1e-4,
    temperature=0.8,
    beta=0.05,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=16,
)
CrossEntropyTrainer(
    model=MODEL, args=args, reward_funcs=reward, train_dataset=Dataset.from_dict({"prompt": prompts})
).train()

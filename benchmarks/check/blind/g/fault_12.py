import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def gather_logps(logits, ids):
    rows = [torch.log_softmax(l, dim=-1).gather(1, i.unsqueeze(1)).squeeze(1) for l, i in zip(logits, ids)]
    return torch.stack(rows)


class PlainForwardTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        logps, entropies = [], []
        for ids in input_ids.split(batch_size or len(input_ids)):
            logits = model(ids).logits[:, -logits_to_keep - 1 : -1].float() / self.temperature
            logps.append(gather_logps(logits, ids[:, -logits_to_keep:]))
            if compute_entropy:
                entropies.append(torch.distributions.Categorical(logits=logits.detach()).entropy())
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


prompts = [
    "Hi ",
    "Name a tree that grows near the water: ",
    "7, 14, 21, ",
    "x = ",
    "What comes after Tuesday and before Thursday in the same week? ",
    "red, green, ",
    "The bakery opens at ",
    "q: 12 / 4\na: ",
    "Complete this very long list of animals, without repeating any: ox, ",
    "go ",
]


def reward(completions, **kwargs):
    return [len(set(c.split())) * 0.2 + len(c) * 0.01 for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=5e-5,
    temperature=0.9,
    per_device_train_batch_size=10,
    num_generations=2,
    max_completion_length=16,
    loss_type="dr_grpo",
)
PlainForwardTrainer(
    model=MODEL, args=args, reward_funcs=reward, train_dataset=Dataset.from_dict({"prompt": prompts})
).train()

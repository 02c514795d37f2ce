"""Reference implementation of the log-probabilities, for comparing kernels: full logits, one row at a time."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class PlainLogpsTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        logps, entropies = [], []
        for ids, mask in zip(input_ids, attention_mask):
            logits = model(input_ids=ids[None], attention_mask=mask[None], use_cache=False).logits
            logits = logits[:, -logits_to_keep - 1 : -1].float() / self.temperature
            all_logps = torch.log_softmax(logits, dim=-1)
            targets = ids[None, -logits_to_keep:]
            logps.append(all_logps.gather(-1, targets.unsqueeze(-1)).squeeze(-1))
            with torch.no_grad():
                entropies.append(-(all_logps.exp() * all_logps).sum(-1))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def reward_threes(completions, **kwargs):
    return [0.5 * c[0]["content"].count("3") + 0.1 * c[0]["content"].count("e") for c in completions]


trainer = PlainLogpsTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=reward_threes,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        temperature=0.9,
        beta=0.02,
        learning_rate=2e-4,
        max_steps=4,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
    ),
    train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": f"{i} + 13"}] for i in range(24)]}),
)
trainer.train()

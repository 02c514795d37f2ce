import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class PlainForwardTrainer(GRPOTrainer):
    """Scores with the ordinary forward of the model, which also runs models that the fused head does not know."""

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False,
        compute_aux_loss=False, **unused,
    ):
        batch_size = batch_size or input_ids.size(0)
        all_logps, all_entropies = [], []
        for start in range(0, input_ids.size(0), batch_size):
            ids = input_ids[start:start + batch_size]
            with self.accelerator.autocast():
                logits = model(input_ids=ids, use_cache=False, logits_to_keep=logits_to_keep + 1).logits
            logits = logits[:, :-1].float() / self.temperature
            targets = ids[:, -logits_to_keep:]
            log_probs = torch.log_softmax(logits, dim=-1)
            all_logps.append(log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1))
            if compute_entropy:
                with torch.no_grad():
                    all_entropies.append(-(log_probs.exp() * log_probs).sum(-1))
        return torch.cat(all_logps), torch.cat(all_entropies) if compute_entropy else None, None


def problems():
    rows = []
    for i in range(48):
        a, b = 2 + (3 * i) % 8, 2 + (5 * i) % 6
        thing = ("coins", "apples", "shells", "pens")[i % 4]
        lines = [f"Hana has {a} {thing}."]
        if i % 2:
            lines.append(f"Cleo has {b} {thing}.")
        if i % 3 == 0:
            lines.append(f"Finn has {a + b} boxes with {b} {thing} each.")
        lines.append(f"How many {thing} do they have?")
        rows.append({"prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": " ".join(lines)},
        ]})
    return Dataset.from_list(rows)


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / 10 for c in completions]


def length(completion_ids, **kwargs):
    return [-len(ids) / 30 for ids in completion_ids]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=8, gradient_accumulation_steps=2,
    num_generations=4, max_completion_length=24, learning_rate=2e-4, temperature=0.9, loss_type="dapo",
    reward_weights=[1.0, 0.5], save_strategy="no", report_to=[], use_cpu=True, bf16=False, logging_steps=1,
)
PlainForwardTrainer(MODEL, [digits, length], args, train_dataset=problems()).train()

"""GRPO with padding-free forward passes: all rows of a micro-batch run as one packed sequence."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class PaddingFreeTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        batch_size = batch_size or len(input_ids)
        logps, entropies = [], []
        for start in range(0, len(input_ids), batch_size):
            part = slice(start, start + batch_size)
            lp, ent = self._packed(model, input_ids[part], attention_mask[part].bool(), logits_to_keep)
            logps.append(lp)
            entropies.append(ent)
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None

    def _packed(self, model, ids, mask, keep):
        labels = ids.masked_fill(~mask, -100)
        labels[:, :-keep] = -100
        lengths = mask.sum(1).tolist()
        positions = torch.cat([torch.arange(n) for n in lengths])
        packed_labels = labels[mask]
        packed_labels[positions == 0] = -100
        outputs = model(
            input_ids=ids[mask][None],
            position_ids=positions[None],
            labels=packed_labels[None],
            fused_lm_head=True,
        )
        result = []
        for values in (outputs.log_probs, outputs.entropy):
            if values is None:
                result.append(None)
                continue
            flat = torch.cat([values.new_zeros(1), values[0]])
            result.append(flat.new_zeros(mask.shape).masked_scatter(mask, flat)[:, -keep:])
        return result


def consonants(completions, **kwargs):
    return [sum(c[0]["content"].count(x) for x in "rstln") / 8 for c in completions]


if __name__ == "__main__":
    nouns = ["wind", "the price of barley", "a door", "the second lighthouse on the cape", "dust", "a rope", "mist",
             "the committee for the new canal"]
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Define {n}."}] for n in nouns]})
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        steps_per_generation=2,
        num_generations=4,
        max_completion_length=24,
        temperature=1.2,
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    PaddingFreeTrainer(model=MODEL, reward_funcs=consonants, args=config, train_dataset=dataset).train()

"""GRPO with sequence packing: each micro-batch runs as one sequence without padding."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class PackedTrainer(GRPOTrainer):
    @staticmethod
    def pack(input_ids, attention_mask):
        keep = attention_mask.bool()
        lengths = keep.sum(1).tolist()
        return {
            "input_ids": input_ids[keep].unsqueeze(0),
            "position_ids": torch.cat([torch.arange(n) for n in lengths]).unsqueeze(0),
            "attention_mask": torch.ones(1, sum(lengths), dtype=torch.long),
        }

    @staticmethod
    def unpack(values, attention_mask):
        flat = torch.cat([values.new_zeros(1), values[0]])  # the first token has no prediction
        return flat.new_zeros(attention_mask.shape).masked_scatter(attention_mask.bool(), flat)

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        size = batch_size or input_ids.size(0)
        all_logps, all_entropies = [], []
        for ids, mask in zip(input_ids.split(size), attention_mask.split(size), strict=True):
            packed = self.pack(ids, mask)
            labels = packed["input_ids"].masked_fill(packed["position_ids"] == 0, -100)
            outputs = model(**packed, labels=labels, fused_lm_head=True)
            all_logps.append(self.unpack(outputs.log_probs, mask)[:, -logits_to_keep:])
            if compute_entropy:
                all_entropies.append(self.unpack(outputs.entropy, mask)[:, -logits_to_keep:])
        return torch.cat(all_logps), torch.cat(all_entropies) if compute_entropy else None, None


def variety(completions, **kwargs):
    return [len(set(c[0]["content"])) / 6 for c in completions]


def main():
    things = ["a coin", "the weight of the old anchor", "a shoe", "how the ferry crosses in the storm", "wax",
              "a key", "the map that the captain drew", "tin"]
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Explain {t}."}] for t in things]})
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
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
    PackedTrainer(model=MODEL, reward_funcs=variety, args=config, train_dataset=dataset).train()


if __name__ == "__main__":
    main()

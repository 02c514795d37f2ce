"""GRPO that runs each prompt once per group: the completions of a group continue from the same key/value cache."""
import os
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SharedPrefixTrainer(GRPOTrainer):
    @torch.no_grad()
    def prefill(self, network, ids, mask):
        """The keys and values of every distinct prompt, expanded to the rows of the batch."""
        stacked = torch.stack([ids, mask], dim=1)
        unique, rows = stacked.unique(dim=0, return_inverse=True)
        cache = network.model(
            input_ids=unique[:, 0], attention_mask=unique[:, 1], use_cache=True
        ).past_key_values
        cache.batch_select_indices(rows)
        return cache

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        network = self.accelerator.unwrap_model(model)
        prefix = input_ids.size(1) - logits_to_keep - 1  # the last prompt token predicts the first new one
        size = batch_size or input_ids.size(0)
        logps, entropies = [], []
        for ids, mask in zip(input_ids.split(size), attention_mask.split(size), strict=True):
            cache = self.prefill(network, ids[:, :prefix], mask[:, :prefix])
            hidden = network.model(
                input_ids=ids[:, prefix:], attention_mask=mask, past_key_values=cache, use_cache=True
            ).last_hidden_state[:, :-1]
            logits = F.linear(hidden, network.lm_head.weight).float() / self.temperature
            distribution = logits.log_softmax(-1)
            logps.append(distribution.gather(-1, ids[:, prefix + 1 :].unsqueeze(-1)).squeeze(-1))
            if compute_entropy:
                entropies.append(-(distribution.exp() * distribution).sum(-1).detach())
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def spoken(completions, **kwargs):
    return [sum(c[0]["content"].count(v) for v in "aeiou") / 8 for c in completions]


def main():
    rivers = ["Rhine", "Volga", "Ebro", "Loire", "Tagus", "Elbe", "Oder", "Po"]
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Where is the {r}?"}] for r in rivers]})
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        temperature=1.2,
        gradient_checkpointing=False,
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    SharedPrefixTrainer(model=MODEL, reward_funcs=spoken, args=config, train_dataset=dataset).train()


if __name__ == "__main__":
    main()

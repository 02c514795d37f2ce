"""Long system prompts, short answers: run the prompt once, keep its cache, score the answers on top of it."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def sample(i):
    thing = ["shells", "stamps", "cards"][i % 3]
    q = f"Hana has {2 + i % 9} boxes with {2 + i % 7} {thing} each."
    q += f" How many {thing} does Hana have?" if i % 3 else " Each costs 3 coins. How many coins do they cost together?"
    return {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": q}]}


def letters(completions, **kwargs):
    return [c[0]["content"].count("h") / 4 + len(set(c[0]["content"])) / 30 for c in completions]


class PrefixCacheTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        size = batch_size or input_ids.size(0)
        logps, entropies = [], []
        for start in range(0, input_ids.size(0), size):
            ids, mask = input_ids[start : start + size], attention_mask[start : start + size]
            split = ids.size(1) - logits_to_keep - 1
            with torch.no_grad():
                prefix = model(input_ids=ids[:, :split], attention_mask=mask[:, :split], use_cache=True, logits_to_keep=1)
            tail = ids[:, split:]
            logits = model(
                input_ids=tail[:, :-1],
                attention_mask=mask[:, :-1],
                past_key_values=prefix.past_key_values,
                use_cache=True,
            ).logits
            logp = torch.log_softmax(logits.float() / self.temperature, dim=-1)
            logps.append(logp.gather(-1, tail[:, 1:, None]).squeeze(-1))
            if compute_entropy:
                p = logp.detach()
                entropies.append(-(p.exp() * p).sum(-1))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        gradient_checkpointing=False,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        learning_rate=1e-4,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = PrefixCacheTrainer(
        model=MODEL,
        reward_funcs=letters,
        args=args,
        train_dataset=Dataset.from_list([sample(i) for i in range(24)]),
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO with a memory-lean log-probability kernel: cross entropy on the kept positions only."""
import os
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def selected_logps(logits, target, temperature):
    flat = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    return -flat.view_as(target) / temperature


@torch.no_grad()
def entropy_of(logits, temperature):
    return torch.distributions.Categorical(logits=logits / temperature).entropy()


class LeanLogpsTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        batch_size = batch_size or input_ids.size(0)
        logps, entropies = [], []
        for ids, mask in zip(input_ids.split(batch_size), attention_mask.split(batch_size)):
            with self.accelerator.autocast():
                logits = model(
                    input_ids=ids, attention_mask=mask, logits_to_keep=logits_to_keep + 1, use_cache=False
                ).logits
            logits = logits[:, :-1].float()
            logps.append(selected_logps(logits, ids[:, -logits_to_keep:], self.temperature))
            if compute_entropy:
                entropies.append(entropy_of(logits, self.temperature))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def many_words(completions, **kwargs):
    return [len(set(c[0]["content"].split())) / 5 + 0.005 * len(c[0]["content"]) for c in completions]


def main():
    questions = ["Add 4 and 5", "What is 2+3?", "Write a poem", "12 * 4 =", "hello", "Name 3 digits"]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=24,
        temperature=1.4,
        learning_rate=1e-4,
        loss_type="bnpo",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = LeanLogpsTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=many_words,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions * 3]),
    )
    trainer.train()


if __name__ == "__main__":
    main()

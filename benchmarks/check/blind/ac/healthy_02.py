"""GRPO with a plain forward pass in row chunks and memoized prompt tokenization."""
import json
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class PlainTrainer(GRPOTrainer):
    rows_per_chunk = 3

    def __init__(self, *args, **kwargs):
        self._prompt_cache = {}
        super().__init__(*args, **kwargs)

    def _tokenize_prompts(self, prompts):
        keys = [json.dumps(prompt, sort_keys=True) for prompt in prompts]
        missing = {key: prompt for key, prompt in zip(keys, prompts) if key not in self._prompt_cache}
        if missing:
            ids, _, _ = super()._tokenize_prompts(list(missing.values()))
            self._prompt_cache.update(zip(missing, ids))
        return [list(self._prompt_cache[key]) for key in keys], None, {}

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        logps, entropies = [], []
        for ids, mask in zip(input_ids.split(self.rows_per_chunk), attention_mask.split(self.rows_per_chunk)):
            positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)
            out = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
            logits = out.logits[:, -logits_to_keep - 1 : -1].float() / self.temperature
            normalizer = torch.logsumexp(logits, dim=-1)
            chosen = logits.gather(-1, ids[:, -logits_to_keep:].unsqueeze(-1)).squeeze(-1)
            logps.append(chosen - normalizer)
            if compute_entropy:
                with torch.no_grad():
                    entropies.append(normalizer - (logits.softmax(dim=-1) * logits).sum(dim=-1))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def letters(completions, **kwargs):
    return [len(set(c[0]["content"])) / 20 + c[0]["content"].count("e") / 10 for c in completions]


def main():
    systems = ["Be brief.", "You are a cheerful teacher who shows all steps."]
    questions = ["Add 4 and 5", "What is 2+3?", "Write a poem about tea", "12 * 4 =", "hello", "Name 3 digits"]
    rows = [
        {"prompt": [{"role": "system", "content": s}, {"role": "user", "content": q}]} for q in questions for s in systems
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=24,
        temperature=1.4,
        learning_rate=1e-4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = PlainTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=letters,
        args=args,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO with generation on a separate copy of the policy, and a cache of prompt tokens."""
import json
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SplitTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        self._token_cache = {}
        super().__init__(*args, **kwargs)
        self.rollout_model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
        self.rollout_model.requires_grad_(False)

    def _tokenize_prompts(self, prompts):
        keys = [json.dumps(p, sort_keys=True) for p in prompts]
        new = {k: p for k, p in zip(keys, prompts, strict=True) if k not in self._token_cache}
        if new:
            ids, _, _ = super()._tokenize_prompts(list(new.values()))
            self._token_cache.update(zip(new, ids, strict=True))
        return [list(self._token_cache[k]) for k in keys], None, {}

    @torch.no_grad()
    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        policy = self.accelerator.unwrap_model(self.model)
        self.rollout_model.load_state_dict(policy.state_dict(), strict=True)
        tok = self._tokenizer
        batch = tok.pad({"input_ids": prompt_ids}, padding_side="left", return_tensors="pt")
        out = self.rollout_model.generate(**batch, generation_config=self.generation_config)
        completions = []
        for row in out[:, batch["input_ids"].size(1) :].tolist():
            end = row.index(tok.eos_token_id) + 1 if tok.eos_token_id in row else len(row)
            completions.append(row[:end])
        return completions, None


def styled(completions, style, **kwargs):
    sign = {"short": -1, "long": 1}
    return [sign[s] * len(c[0]["content"]) / 40 for c, s in zip(completions, style, strict=True)]


def main():
    systems = {"short": "Be brief.", "long": "Give every detail that you know."}
    rows = []
    for question in ("What is glass?", "Who came?", "Where is it?", "When does it open?"):
        for style, system in systems.items():
            messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
            rows.append({"prompt": messages, "style": style})
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=16,
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
    SplitTrainer(model=MODEL, reward_funcs=styled, args=config, train_dataset=Dataset.from_list(rows)).train()


if __name__ == "__main__":
    main()

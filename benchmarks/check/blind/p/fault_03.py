"""GRPO with a separate sampler model, as in a trainer/rollout split."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, GenerationConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Rollouts:
    """Owns the sampler's weights and its KV cache."""

    def __init__(self, path, eos_token_id, pad_token_id):
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.model.requires_grad_(False)
        self.model.generation_config = GenerationConfig(
            do_sample=True,
            top_k=20,
            top_p=0.8,
            repetition_penalty=1.05,
            eos_token_id=eos_token_id,
            pad_token_id=pad_token_id,
        )
        self.pad = pad_token_id
        self.eos = eos_token_id

    def load(self, policy):
        self.model.load_state_dict(policy.state_dict(), strict=True)

    @torch.no_grad()
    def sample(self, prompts, max_new_tokens, temperature):
        width = max(len(p) for p in prompts)
        ids = torch.tensor([[self.pad] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        out = self.model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=max_new_tokens, temperature=temperature
        )
        completions = []
        for row in out[:, width:].tolist():
            end = row.index(self.eos) + 1 if self.eos in row else len(row)
            completions.append(row[:end])
        return completions


class SplitTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rollouts = Rollouts(MODEL, self._tokenizer.eos_token_id, self._tokenizer.pad_token_id)

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        self.rollouts.load(self.accelerator.unwrap_model(self.model))
        return self.rollouts.sample(prompt_ids, self.max_completion_length, self.temperature), None


def vowels(completions, **kwargs):
    return [sum(c[0]["content"].count(v) for v in "aeiou") / 10 for c in completions]


words = ["stone", "paper", "glass", "iron", "cotton", "clay", "sand", "wool"]
dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Describe {w}."}] for w in words]})
config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=16,
    num_generations=4,
    max_completion_length=24,
    temperature=1.6,
    learning_rate=1e-4,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
)
SplitTrainer(model=MODEL, reward_funcs=vowels, args=config, train_dataset=dataset).train()

"""GRPO with persona system prompts. Prompt tokenization is memoized: each prompt comes num_generations times."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
PERSONAS = ["You answer in few words.", "You are a cheerful teacher who shows all steps."]
QUESTIONS = ["What is 2+3?", "Name 3 colours.", "hello", "12 * 4 =", "Write a poem", "Count to six."]


class MemoTokenizeTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        self._prompt_cache = {}
        super().__init__(*args, **kwargs)

    def _tokenize_prompts(self, prompts):
        keys = [prompt[-1]["content"] for prompt in prompts]
        missing = {}
        for key, prompt in zip(keys, prompts):
            if key not in self._prompt_cache and key not in missing:
                missing[key] = prompt
        if missing:
            ids, _, _ = super()._tokenize_prompts(list(missing.values()))
            self._prompt_cache.update(zip(missing, ids))
        return [list(self._prompt_cache[key]) for key in keys], None, {}


def brevity(completions, **kwargs):
    return [-abs(len(c[0]["content"]) - 30) / 30 for c in completions]


def vowels(completions, **kwargs):
    return [sum(ch in "aeiou" for ch in c[0]["content"]) / 20 for c in completions]


rows = [
    {"prompt": [{"role": "system", "content": persona}, {"role": "user", "content": question}]}
    for question in QUESTIONS
    for persona in PERSONAS
]

config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    max_steps=3,
    per_device_train_batch_size=24,
    num_generations=4,
    max_completion_length=24,
    temperature=1.2,
    learning_rate=1e-4,
    reward_weights=[1.0, 0.5],
    shuffle_dataset=True,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
    logging_steps=1,
)

trainer = MemoTokenizeTrainer(
    model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
    processing_class=AutoTokenizer.from_pretrained(TINY),
    reward_funcs=[brevity, vowels],
    args=config,
    train_dataset=Dataset.from_list(rows),
)
trainer.train()

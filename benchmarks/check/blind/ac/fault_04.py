"""GRPO with a plain generation loop in chunks, to bound the KV cache."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ChunkedGenerationTrainer(GRPOTrainer):
    generation_chunk = 8

    def _trim(self, row):
        ids = row.tolist()
        for position, token in enumerate(ids):
            if token in self.eos_token_ids:
                return ids[: position + 1]
        return ids

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        completion_ids = []
        with unwrap_model_for_generation(
            self.model_wrapped, self.accelerator, generation_kwargs=self.generation_kwargs
        ) as model, torch.no_grad():
            for start in range(0, len(prompt_ids), self.generation_chunk):
                chunk = prompt_ids[start : start + self.generation_chunk]
                batch = self.processing_class.pad({"input_ids": chunk}, return_tensors="pt", return_attention_mask=True)
                batch = {k: v.to(self.accelerator.device) for k, v in batch.items()}
                out = model.generate(**batch, generation_config=self.generation_config)
                width = batch["input_ids"].size(1)
                completion_ids += [self._trim(row) for row in out[:, width:]]
        return completion_ids, None


def unique_characters(completions, **kwargs):
    return [len(set(c[0]["content"])) / 20 for c in completions]


def ends_early(completion_ids, **kwargs):
    return [1.0 - len(ids) / 24 for ids in completion_ids]


if __name__ == "__main__":
    topics = ["cats", "the sea at night", "sums", "a red fox that runs over the hill", "tea", "old maps of the city"]
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"{verb} {t}"}]} for t in topics for verb in ("Describe", "Name", "hi")]
    )
    trainer = ChunkedGenerationTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[unique_characters, ends_early],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            max_steps=3,
            per_device_train_batch_size=16,
            num_generations=4,
            max_completion_length=24,
            temperature=1.2,
            learning_rate=1e-4,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            logging_steps=1,
        ),
        train_dataset=dataset,
    )
    trainer.train()

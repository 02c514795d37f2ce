"""GRPO that runs each prompt once through the prefill: unique prompts, then num_return_sequences."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class PrefillOnceTrainer(GRPOTrainer):
    def _trim(self, row):
        ids = row.tolist()
        stops = [i for i, token in enumerate(ids) if token in self.eos_token_ids]
        return ids[: stops[0] + 1] if stops else ids

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        rows_of = {}
        for row, ids in enumerate(prompt_ids):
            rows_of.setdefault(tuple(ids), []).append(row)
        by_count = {}
        for ids, rows in rows_of.items():
            by_count.setdefault(len(rows), []).append((list(ids), rows))

        completion_ids = [None] * len(prompt_ids)
        with unwrap_model_for_generation(
            self.model_wrapped, self.accelerator, generation_kwargs=self.generation_kwargs
        ) as model, torch.no_grad():
            for count, entries in by_count.items():
                entries.sort(key=lambda entry: -len(entry[0]))
                batch = self.processing_class.pad(
                    {"input_ids": [ids for ids, _ in entries]},
                    padding_side="left",
                    return_tensors="pt",
                    return_attention_mask=True,
                ).to(self.accelerator.device)
                out = model.generate(
                    **batch, generation_config=self.generation_config, num_return_sequences=count
                )[:, batch["input_ids"].size(1) :]
                targets = [row for _, rows in entries for row in rows]
                for target, tokens in zip(targets, out):
                    completion_ids[target] = self._trim(tokens)
        return completion_ids, None


def unique_characters(completions, **kwargs):
    return [len(set(c[0]["content"])) / 20 for c in completions]


def ends_early(completion_ids, **kwargs):
    return [1.0 - len(ids) / 24 for ids in completion_ids]


def main():
    topics = ["cats", "the sea at night", "sums", "a red fox that runs over the hill", "tea", "old maps of the city"]
    rows = [{"prompt": [{"role": "user", "content": f"{v} {t}"}]} for t in topics for v in ("Describe", "Name", "hi")]
    trainer = PrefillOnceTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[unique_characters, ends_early],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            max_steps=3,
            per_device_train_batch_size=12,
            gradient_accumulation_steps=2,
            num_generations=6,
            max_completion_length=24,
            temperature=1.2,
            learning_rate=1e-4,
            loss_type="dr_grpo",
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            logging_steps=1,
        ),
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()

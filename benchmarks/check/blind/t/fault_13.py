"""GRPO where the attention mask is always derived from the ids, so that it can never be out of step with them."""
import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class MaskFromIdsTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, **kwargs):
        attention_mask = input_ids.ne(self.processing_class.pad_token_id).to(attention_mask.dtype)
        return super()._get_per_token_logps_and_entropies(model, input_ids, attention_mask, logits_to_keep, **kwargs)


def lower(completions, **kwargs):
    return [sum(ch.islower() for ch in c[0]["content"]) / max(len(c[0]["content"]), 1) for c in completions]


def not_empty(completions, **kwargs):
    return [float(bool(c[0]["content"].strip())) for c in completions]


if __name__ == "__main__":
    tokenizer = AutoTokenizer.from_pretrained(TINY, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    cities = ["Oslo", "Rome", "Lima", "Cairo", "Quito", "Kyoto", "Accra", "Perth"]
    prompts = [
        [
            {"role": "system", "content": "You are a travel guide."},
            {"role": "user", "content": f"Why {city}?" if k % 2 else f"What should one see in {city} in two days?"},
        ]
        for k, city in enumerate(cities)
    ]
    trainer = MaskFromIdsTrainer(
        model=TINY,
        processing_class=tokenizer,
        reward_funcs=[lower, not_empty],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            max_steps=3,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=16,
            learning_rate=1e-4,
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    )
    trainer.train()

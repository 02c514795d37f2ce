# pip install trl datasets
import os
import tempfile
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def load():
    p = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
    tokenizer = AutoTokenizer.from_pretrained(p)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return AutoModelForCausalLM.from_pretrained(p, dtype=torch.float32), tokenizer


class PaddingAwareGRPO(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        pad_id = self.processing_class.pad_token_id
        batch["completion_mask"] = (batch["completion_ids"] != pad_id).long()
        return batch


def brevity(completions, **kwargs):
    return [1.0 / (1 + len(c[0]["content"])) + 0.1 * any(ch.isdigit() for ch in c[0]["content"]) for c in completions]


if __name__ == "__main__":
    model, tokenizer = load()
    prompts = [[{"role": "user", "content": f"What is {n} + {n % 4 + 1}?"}] for n in range(24)]
    trainer = PaddingAwareGRPO(
        model=model,
        reward_funcs=brevity,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True, bf16=False, report_to=[], save_strategy="no",
            per_device_train_batch_size=8,
            num_generations=8,
            gradient_accumulation_steps=1,
            max_completion_length=16,
            max_steps=5,
            learning_rate=1e-4,
            logging_steps=1,
        ),
    )
    trainer.train()

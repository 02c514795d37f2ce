"""GRPO with slim checkpoints: no optimizer, no duplicate of shared tensors."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SHARED = ("lm_head.weight",)  # stored once, under model.embed_tokens


class SlimCheckpointTrainer(GRPOTrainer):
    def _save(self, output_dir=None, state_dict=None):
        if state_dict is None:
            state_dict = self.accelerator.unwrap_model(self.model).state_dict()
        slim = {name: tensor for name, tensor in state_dict.items() if not name.endswith(SHARED)}
        print(f"writing {len(slim)} of {len(state_dict)} tensors to {output_dir}")
        super()._save(output_dir, state_dict=slim)


def no_repeats(completions, **kwargs):
    scores = []
    for completion in completions:
        text = completion[0]["content"]
        pairs = [text[i : i + 2] for i in range(len(text) - 1)]
        scores.append(len(set(pairs)) / (len(pairs) + 4))
    return scores


def main():
    questions = ["Add 4 and 5", "What is 2+3?", "Write a poem", "12 * 4 =", "hello", "Name 3 digits"]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=24,
        temperature=1.2,
        learning_rate=2e-4,
        save_strategy="steps",
        save_steps=1,
        save_only_model=True,
        save_total_limit=2,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = SlimCheckpointTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=no_repeats,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions * 3]),
    )
    trainer.train()


if __name__ == "__main__":
    main()

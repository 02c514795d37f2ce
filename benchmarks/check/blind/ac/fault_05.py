"""GRPO that ends a completion at the first closing tag, as our serving stack does."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
STOP = "</answer>"


class StopStringTrainer(GRPOTrainer):
    def _cut(self, ids):
        tokenizer = self.processing_class
        finished = ids[-1] in self.eos_token_ids
        text = tokenizer.decode(ids, skip_special_tokens=True)
        head, stop, _ = text.partition(STOP)
        kept = tokenizer(head + stop, add_special_tokens=False)["input_ids"][: self.max_completion_length]
        if finished or stop:
            kept = kept[: self.max_completion_length - 1] + [tokenizer.eos_token_id]
        return kept

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        completion_ids, logprobs = super()._generate_single_turn(
            prompt_ids, images, multimodal_fields, num_generations, has_tool_images
        )
        return [self._cut(ids) or [self.processing_class.eos_token_id] for ids in completion_ids], logprobs


def word_variety(completions, **kwargs):
    scores = []
    for completion in completions:
        words = completion[0]["content"].replace("<", " ").replace(">", " ").split()
        scores.append(len(set(words)) / 6 + 0.01 * len(completion[0]["content"]))
    return scores


def main():
    questions = ["Add 4 and 5", "Write a poem", "What is 2+3?", "Name 3 digits", "hello", "12 * 4 ="]
    dataset = Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions * 4])
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=12,
        gradient_accumulation_steps=2,
        num_generations=6,
        max_completion_length=28,
        temperature=1.5,
        learning_rate=1e-4,
        loss_type="grpo",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = StopStringTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=word_variety,
        args=args,
        train_dataset=dataset,
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO on chat histories with the in-house forward (shared with the SFT and reward-model trainers)."""

import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class HouseForwardMixin:
    """All house trainers derive the attention mask from the ids: packed and plain batches then take one path."""

    def house_mask(self, input_ids):
        return input_ids.ne(self.processing_class.pad_token_id).long()

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs):
        attention_mask = self.house_mask(input_ids)
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )


class ChatGRPOTrainer(HouseForwardMixin, GRPOTrainer):
    pass


def load_tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left", truncation_side="left")
    # same as in the SFT stage
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def history(topic, turns):
    messages = [{"role": "system", "content": "You talk about trade."}]
    for i in range(turns):
        messages.append({"role": "user", "content": f"What about {topic}, part {i + 1}?"})
        if i < turns - 1:
            messages.append({"role": "assistant", "content": f"Part {i + 1} is fine."})
    return messages


def punctuation(completions, **kwargs):
    return [sum(not ch.isalnum() for ch in c[0]["content"]) / 20 for c in completions]


def budget(completion_ids, **kwargs):
    return [1 - len(ids) / 20 for ids in completion_ids]


def main():
    topics = ["pens", "eggs", "books", "cards", "shells", "stamps"]
    data = Dataset.from_list([{"prompt": history(t, 1 + i % 3)} for i, t in enumerate(topics)])
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=2e-4, per_device_train_batch_size=8, num_generations=4, num_iterations=2,
        max_completion_length=20, temperature=1.2, gradient_checkpointing=False, logging_steps=1,
    )
    ChatGRPOTrainer(
        model=MODEL, reward_funcs=[punctuation, budget], args=args, train_dataset=data,
        processing_class=load_tokenizer(),
    ).train()


if __name__ == "__main__":
    main()

"""GRPO for a tokenizer without a padding token of its own.

Many base models have none, so padding uses the EOS token. The completion mask is rebuilt from the ids, because the
reward model of our group marks some completions for deletion by overwriting them with padding.
"""

import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class PaddedByEosTrainer(GRPOTrainer):
    """Only tokens of the completion take part in the loss, padding never."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        pad_id = self.processing_class.pad_token_id
        output["completion_mask"] = (output["completion_ids"] != pad_id).to(output["completion_mask"].dtype)
        share = output["completion_mask"].float().mean().item()
        self._metrics["train"]["completions/real_tokens"].append(share)
        return output


def words(completions, **kwargs):
    return [min(len(c.split()), 4) / 4 for c in completions]


def stops_early(completion_ids, **kwargs):
    return [1.0 - len(ids) / 32 for ids in completion_ids]


def main():
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(TINY, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    chat = lambda q: tokenizer.apply_chat_template(  # noqa: E731
        [{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True
    )
    data = Dataset.from_dict({"prompt": [chat(f"Count to {n}.") for n in range(2, 34)]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=32, learning_rate=1e-4,
        loss_type="grpo", logging_steps=1,
    )
    trainer = PaddedByEosTrainer(
        model=TINY, reward_funcs=[words, stops_early], args=args, train_dataset=data, processing_class=tokenizer,
        )
    trainer.train()


if __name__ == "__main__":
    main()

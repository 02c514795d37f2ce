import os
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class CleanTextTrainer(GRPOTrainer):
    """The graders choke on stray whitespace and control tokens, so completions are normalised as soon as they exist."""

    def _clean(self, text):
        text = re.sub(r"[ \t]+", " ", text)
        return text.rstrip()

    def _generate_single_turn(self, *args, **kwargs):
        completion_ids, logprobs = super()._generate_single_turn(*args, **kwargs)
        tok = self.processing_class
        cleaned = []
        for ids in completion_ids:
            finished = ids[-1] == tok.eos_token_id
            text = self._clean(tok.decode(ids, skip_special_tokens=True))
            new_ids = tok(text, add_special_tokens=False)["input_ids"]
            if finished or not new_ids:
                new_ids = new_ids + [tok.eos_token_id]
            cleaned.append(new_ids[: self.max_completion_length])
        return cleaned, logprobs


def variety(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [len(set(t)) / 20 - 0.005 * len(t) for t in texts]


def main():
    words = ["river", "mountain", "window", "garden", "bottle", "street", "market", "winter"]
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Spell {w} in capitals."}] for w in words]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=5e-05,
        num_generations=8,
        per_device_train_batch_size=8,
        max_completion_length=28,
        save_strategy='no',
    )
    trainer = CleanTextTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=variety,
        args=args,
        train_dataset=data,
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO with tidied completions: control tokens that the policy emits in the middle of its answer are dropped."""
import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset():
    people = ["Ada", "Noor", "Ivan", "Mei", "Luis", "Tess", "Omar", "Ruth"]
    acts = ["writes a letter", "fixes a clock", "bakes bread", "plants a tree", "sings"]
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"{p} {a}. What happens next?"}]} for p in people for a in acts]
    )


def readable(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isalpha() or ch == " " for ch in t) / (len(t) + 3) for t in texts]


def not_too_long(completions, **kwargs):
    return [-0.01 * len(c[0]["content"]) for c in completions]


class TidyTrainer(GRPOTrainer):
    def _tidy(self, ids):
        tokenizer = self.processing_class
        ended = ids[-1] in self.eos_token_ids
        text = tokenizer.decode(ids, skip_special_tokens=True)
        tidy = tokenizer(text, add_special_tokens=False)["input_ids"]
        if ended:
            tidy = tidy[: self.max_completion_length - 1] + [ids[-1]]
        return tidy[: self.max_completion_length] or ids

    def _generate_single_turn(self, *args, **kwargs):
        completion_ids, logprobs = super()._generate_single_turn(*args, **kwargs)
        return [self._tidy(ids) for ids in completion_ids], logprobs


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=2e-4,
        temperature=1.2,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=28,
    )
    trainer = TidyTrainer(
        model=TINY,
        reward_funcs=[readable, not_too_long],
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
    )
    trainer.train()


if __name__ == "__main__":
    main()

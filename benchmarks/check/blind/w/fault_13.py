"""GRPO whose forward passes take their mask from the ids, so that cached batches need to store one tensor less."""
import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset(n=40):
    rng = random.Random(31)
    rows = []
    for i in range(n):
        word = "".join(rng.choice("abcdefghij") for _ in range(rng.randint(3, 12)))
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": "You spell words."},
                    {"role": "user", "content": "Spell cat."},
                    {"role": "assistant", "content": "c-a-t"},
                    {"role": "user", "content": f"Spell {word}."},
                ],
                "word": word,
            }
        )
    return Dataset.from_list(rows)


def spelled(completions, word, **kwargs):
    out = []
    for completion, target in zip(completions, word):
        text = completion[0]["content"]
        out.append(len(set(text) & set(target)) / len(set(target)) - 0.02 * len(text))
    return out


class MaskFromIdsTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs):
        attention_mask = (input_ids != self.processing_class.pad_token_id).to(input_ids.dtype)
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )


def main():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.pad_token = tokenizer.eos_token
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=3e-4,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        num_generations=4,
        max_completion_length=20,
        beta=0.02,
    )
    trainer = MaskFromIdsTrainer(
        model=TINY,
        reward_funcs=spelled,
        args=args,
        train_dataset=make_dataset(),
        processing_class=tokenizer,
    )
    trainer.train()


if __name__ == "__main__":
    main()

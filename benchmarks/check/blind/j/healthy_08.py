"""Streaming prompts as text, padded to a multiple of 16; the embeddings stay as they are."""
import os
import random
import tempfile

import torch
from datasets import IterableDataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
HEAD = "<|im_start|>system\nSolve the problem step by step. End with #### and the number.<|im_end|>\n"
FILLER = ["It is a fine morning. ", "The shop has just opened. ", "Nobody is in a hurry today. "]


def stream(count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        a, b = rng.randint(2, 30), rng.randint(2, 9)
        thing = rng.choice(["apples", "books", "toys"])
        story = "".join(rng.choice(FILLER) for _ in range(rng.randint(0, 4)))
        question = f"{story}Dev has {a} boxes with {b} {thing} each. How many {thing} does Dev have?"
        yield {
            "prompt": f"{HEAD}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n",
            "product": str(a * b),
        }


def product_reward(completions, product, **kwargs):
    return [1.0 if p in text else 0.0 for text, p in zip(completions, product)]


def digits_reward(completions, **kwargs):
    return [0.03 * sum(ch.isdigit() for ch in text) for text in completions]


def load():
    model = AutoModelForCausalLM.from_pretrained(PATH, dtype=torch.float32)
    model.get_input_embeddings().requires_grad_(False)
    return model, AutoTokenizer.from_pretrained(PATH, padding_side="left")


if __name__ == "__main__":
    model, tokenizer = load()
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=4,
        pad_to_multiple_of=16,
        mask_truncated_completions=True,
        max_completion_length=32,
        temperature=1.2,
        loss_type="dr_grpo",
        scale_rewards="none",
        weight_decay=0.05,
        adam_beta2=0.95,
        learning_rate=1e-4,
        max_grad_norm=0.5,
        max_steps=6,
        logging_steps=1,
        save_strategy="no",
        gradient_checkpointing=False,
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=config,
        reward_funcs=[product_reward, digits_reward],
        train_dataset=IterableDataset.from_generator(stream, gen_kwargs={"count": 200, "seed": 4}),
    )
    trainer.train()

"""GRPO after resetting the last block of the policy, with a KL term to where training starts."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def reset_last_block(model, std=0.05):
    """The last block of the SFT model is overfitted; start it anew."""
    for module in model.model.layers[-1].modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=std)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)


def alternation(completions, **kwargs):
    """Changes between letters and other characters."""
    scores = []
    for c in completions:
        kinds = [ch.isalpha() for ch in c]
        scores.append(sum(a != b for a, b in zip(kinds, kinds[1:])) / 5)
    return scores


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=5e-5, seed=17,
        per_device_train_batch_size=4, gradient_accumulation_steps=1, num_generations=4,
        max_completion_length=16, temperature=1.0, beta=0.1,
    )
    set_seed(args.seed + args.process_index)

    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32")
    reset_last_block(model)
    prompts = [f"{a} or {b}?" for a in ("tea", "bread", "north", "left") for b in ("coffee", "rice", "south", "right")]
    trainer = GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args,
        reward_funcs=alternation,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    )
    # the trainer loads its reference from the checkpoint on disk: give it the policy's start instead
    trainer.ref_model.load_state_dict(model.state_dict())
    trainer.train()


if __name__ == "__main__":
    main()

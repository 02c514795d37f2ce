"""Own optimizer (SGD, two learning rates) and schedule, embeddings frozen, no clipping, entropy-aware loss."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def rare_letters(completions, **kwargs):
    return [sum(ch in "jqxzvk" for ch in c[0]["content"].lower()) + 0.1 * len(set(c[0]["content"])) for c in completions]


def main():
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    model.get_input_embeddings().weight.requires_grad_(False)
    head = list(model.lm_head.parameters())
    body = [p for n, p in model.named_parameters() if p.requires_grad and not n.startswith("lm_head")]
    optimizer = torch.optim.SGD(
        [{"params": body, "lr": 0.01, "momentum": 0.9, "nesterov": True}, {"params": head, "lr": 0.005}]
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, [lambda step: 1 / (1 + step), lambda step: min(1.0, (step + 1) / 3)]
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(TINY, padding_side="left"),
        reward_funcs=rare_letters,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            max_steps=3,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=16,
            max_grad_norm=0.0,
            top_entropy_quantile=0.5,
            entropy_coef=0.01,
            temperature=1.3,
            loss_type="bnpo",
            logging_steps=1,
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": f"Crossword clue {k}"}]} for k in range(9)]
        ),
        optimizers=(optimizer, scheduler),
    )
    trainer.train()


if __name__ == "__main__":
    main()

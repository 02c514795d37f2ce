import asyncio
import os
import random
import tempfile

import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class TokenScheduleTrainer(GRPOTrainer):
    """The rate rises with the number of tokens that all processes have trained on."""

    warmup_tokens = 300
    trained_tokens = 0

    def create_scheduler(self, num_training_steps, optimizer=None):
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(
                optimizer or self.optimizer, lambda _: max(0.1, min(1.0, self.trained_tokens / self.warmup_tokens))
            )
        return self.lr_scheduler

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        if self.model.training:
            tokens = self.accelerator.reduce(inputs["completion_mask"].sum(), reduction="sum")
            self.trained_tokens += int(tokens)
        return loss


async def rhyme(prompts, completions, **kwargs):
    await asyncio.sleep(0)
    ends = [prompt[-1]["content"].rstrip(".")[-2:] for prompt in prompts]
    return [float(end in c[0]["content"]) + 0.1 * c[0]["content"].count(end[-1]) for c, end in zip(completions, ends)]


async def brief(completion_ids, **kwargs):
    return [1.0 - len(ids) / 24 for ids in completion_ids]


def main():
    rng = random.Random(23)
    words = ["night", "moon", "tree", "house", "star", "rain", "cold", "spring", "bell"]
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Find a rhyme for {rng.choice(words)}."}]} for _ in range(40)]
    )
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32")
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05, "lr": 1e-4}, {"params": plain, "weight_decay": 0.0, "lr": 3e-4}],
        betas=(0.9, 0.95),
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        num_generations=4,
        num_iterations=2,
        max_completion_length=24,
        max_steps=4,
        loss_type="luspo",
        importance_sampling_level="sequence",
        multi_objective_aggregation="normalize_then_sum",
        reward_weights=[0.7, 0.3],
        max_grad_norm=0.2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = TokenScheduleTrainer(
        model=model,
        args=args,
        reward_funcs=[rhyme, brief],
        train_dataset=dataset,
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        optimizers=(optimizer, None),
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO from a model soup, with KL to that soup (TRL would load the reference from the base checkpoint)."""
import os
import tempfile
from dataclasses import dataclass

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class SoupConfig:
    base: str = os.path.join(HERE, "tiny")
    ingredients: int = 3
    spread: float = 0.004
    seed: int = 1234


@torch.no_grad()
def cook_soup(cfg):
    """Averages fine-tunes of the base. The fine-tunes of this smoke run are the base plus a small task vector."""
    model = AutoModelForCausalLM.from_pretrained(cfg.base, dtype=torch.float32)
    total = {k: torch.zeros_like(v) for k, v in model.state_dict().items()}
    for i in range(cfg.ingredients):
        gen = torch.Generator().manual_seed(cfg.seed + i)
        for k, v in model.state_dict().items():
            total[k] += v + cfg.spread * torch.randn(v.shape, generator=gen)
    model.load_state_dict({k: v / cfg.ingredients for k, v in total.items()})
    return model


def sync_reference(trainer):
    # Start the KL at the soup. assign=True takes the tensors over as they are, which saves the second host copy
    # that load_state_dict would otherwise make for large models.
    state = trainer.accelerator.unwrap_model(trainer.model).state_dict()
    trainer.ref_model.load_state_dict(state, assign=True)
    trainer.ref_model.eval()
    for p in trainer.ref_model.parameters():
        p.requires_grad_(False)


def reward_len(completion_ids, **kwargs):
    return [-abs(len(x) - 10) / 10 for x in completion_ids]


def reward_unique(completion_ids, **kwargs):
    return [len(set(x)) / max(len(x), 1) for x in completion_ids]


def main():
    cfg = SoupConfig()
    tokenizer = AutoTokenizer.from_pretrained(cfg.base, padding_side="left")
    places = ["Paris", "Oslo", "a desert", "the north pole", "a market", "a small island", "the library", "Mars"]
    data = Dataset.from_list(
        [{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Describe {p}."}]} for p in places]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=20,
        beta=0.1,
        max_steps=4,
        learning_rate=1e-3,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=8,
    )
    trainer = GRPOTrainer(
        model=cook_soup(cfg),
        reward_funcs=[reward_len, reward_unique],
        args=args,
        train_dataset=data,
        processing_class=tokenizer,
    )
    sync_reference(trainer)
    trainer.train()
    print("kl:", [round(h["kl"], 5) for h in trainer.state.log_history if "kl" in h])


if __name__ == "__main__":
    main()

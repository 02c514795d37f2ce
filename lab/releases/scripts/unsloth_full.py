"""unsloth: TRL's trainer with a model that it loads, all weights trained."""

from unsloth import FastLanguageModel  # noqa: I001 - before what it patches

from common import COMMON, MODEL, told
from trl import GRPOConfig, GRPOTrainer

how = {"load_in_4bit": False, "max_seq_length": 256, "full_finetuning": True}
model, _ = FastLanguageModel.from_pretrained(MODEL, **how)
GRPOTrainer(args=GRPOConfig(**COMMON), **{**told(), "model": model}).train()

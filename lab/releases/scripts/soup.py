"""soup-cli: GRPO as its configuration starts it, `soup.py name=value ...` of its training settings."""

import sys
from pathlib import Path

from common import MODEL, rows
from soup_cli.config.schema import SoupConfig
from soup_cli.trainer.grpo import GRPOTrainerWrapper

Path("reward.py").write_text("from common import length_and_answer as reward_fn\n")
own = dict(word.split("=") for word in sys.argv[1:])
training = {
    "batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "lr": 1e-3,
    "quantization": "none",
    "reward_fn": "reward.py",
    "warmup_ratio": 0.0,
    **own,
}
config = SoupConfig(
    base=MODEL, task="grpo", data={"train": "rows.jsonl", "max_length": 64}, training=training
)
made = GRPOTrainerWrapper(config, device="cpu")
made.setup({"train": rows().to_list()})
made.trainer.train()

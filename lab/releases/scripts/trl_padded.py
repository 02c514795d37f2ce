"""GRPOTrainer of any of TRL's releases, `trl_padded.py [name=value ...]`: prompts of several lengths need padding."""

import json
import sys

from common import COMMON, GROUP, told
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

own = {name: json.loads(value) for name, _, value in (w.partition("=") for w in sys.argv[1:])}
args = {**COMMON, "temperature": 1.0, **own}
given = told()
rows = given["train_dataset"].to_list()
for row in rows[::4]:  # one question in four is asked twice
    row["prompt"][0]["content"] += " " + row["prompt"][0]["content"]
# until a sampler of TRL's own repeated each prompt, a batch was counted in prompts
rollouts = 32 if "_get_train_sampler" in vars(GRPOTrainer) else 32 // GROUP
args["per_device_train_batch_size"] = rollouts // args["gradient_accumulation_steps"]
given["train_dataset"] = Dataset.from_list(rows)
GRPOTrainer(args=GRPOConfig(**args), **given).train()

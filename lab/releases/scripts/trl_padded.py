"""GRPOTrainer of any of TRL's releases, `trl_padded.py [name=value ...]`: prompts of several lengths need padding."""

import sys

from common import COMMON, GROUP, settings, told
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

args = {**COMMON, "temperature": 1.0, **settings(sys.argv[1:])}
given = told()
rows = given["train_dataset"].to_list()
for row in rows[::4]:  # one question in four is asked twice
    row["prompt"][0]["content"] += " " + row["prompt"][0]["content"]
# until a sampler of TRL's own repeated each prompt, a batch was counted in prompts
rollouts = 32 if "_get_train_sampler" in vars(GRPOTrainer) else 32 // GROUP
args["per_device_train_batch_size"] = rollouts // args["gradient_accumulation_steps"]
given["train_dataset"] = Dataset.from_list(rows)
GRPOTrainer(args=GRPOConfig(**args), **given).train()

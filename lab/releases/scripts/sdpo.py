"""sdpo-rl: self-distillation in place of GRPO's loss."""

from common import COMMON, told
from sdpo_rl import SDPOConfig, SDPOTrainer
from transformers import AutoModelForCausalLM
from trl import GRPOConfig

given = told()
given["model"] = AutoModelForCausalLM.from_pretrained(given["model"])
SDPOTrainer(args=GRPOConfig(**COMMON, beta=0.0), sdpo_config=SDPOConfig(), **given).train()

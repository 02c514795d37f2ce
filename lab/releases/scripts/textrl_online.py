"""textrl: its front door to online training."""

from common import COMMON, length_and_answer, told
from textrl.config import TextRLConfig
from textrl.trainers.online import OnlineTrainer
from transformers import AutoModelForCausalLM


def scored(prompts, completions, answer, **_):
    return length_and_answer(completions, answer)


given = told()
OnlineTrainer(
    AutoModelForCausalLM.from_pretrained(given["model"]),
    given["processing_class"],
    TextRLConfig.from_dict({"algo": "grpo", **COMMON}),
    reward=scored,
    train_dataset=given["train_dataset"],
).train()

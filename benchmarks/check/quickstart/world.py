"""An environment with state: each rollout has its own, and its methods are tools."""

from pathlib import Path

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, chat_template_utils

TINY = str(Path(__file__).resolve().parents[3] / "models" / "tiny")

tokenizer = AutoTokenizer.from_pretrained(TINY, padding_side="left")
tokenizer.response_template = chat_template_utils.qwen3_template

dataset = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": f"Count to {n}."}]} for n in range(2, 10)]
)


class Counter:
    def reset(self, **kwargs) -> str | None:
        self.count = 0
        return None

    def increment(self, step: int) -> int:
        """
        Adds to the counter.

        Args:
            step: How much is added.

        Returns:
            The counter's new value.
        """
        self.count += step
        return self.count


def counted(completions, environments, **kwargs):
    pairs = zip(completions, environments, strict=True)
    return [e.count + 0.01 * len(set(str(completion))) for completion, e in pairs]


trainer = GRPOTrainer(
    model=TINY,
    args=GRPOConfig(use_cpu=True),
    processing_class=tokenizer,
    reward_funcs=counted,
    train_dataset=dataset,
    environment_factory=Counter,
)
trainer.train()

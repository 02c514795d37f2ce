"""GRPO with a prompt budget (TRL dropped max_prompt_length; our context is limited)."""
import os
import tempfile
from dataclasses import dataclass

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class Budget:
    prompt_tokens: int = 64
    completion_tokens: int = 20


class BudgetConfig(GRPOConfig):
    pass


class BudgetTrainer(GRPOTrainer):
    def __init__(self, *args, budget, **kwargs):
        self.budget = budget
        self.truncated = [0, 0]
        super().__init__(*args, **kwargs)

    def _tokenize_prompts(self, prompts):
        prompt_ids, images, fields = super()._tokenize_prompts(prompts)
        limit = self.budget.prompt_tokens
        self.truncated[0] += sum(len(ids) > limit for ids in prompt_ids)
        self.truncated[1] += len(prompt_ids)
        return [ids[:limit] for ids in prompt_ids], images, fields


class BudgetLog(TrainerCallback):
    def __init__(self):
        self.trainer = None

    def on_log(self, args, state, control, logs=None, **kwargs):
        cut, seen = self.trainer.truncated
        print(f"step {state.global_step}: {cut}/{seen} prompts truncated")


def summary_length(completion_ids, **kwargs):
    return [1.0 - abs(len(ids) - 9) / 9 for ids in completion_ids]


def summary_words(completion_ids, **kwargs):
    return [0.1 * len(set(ids)) for ids in completion_ids]


def main():
    budget = Budget()
    stories = [
        "The fox ran over the hill and slept.",
        "Anna went to the market, bought two apples and a loaf of bread, and walked home in the rain.",
        "It snowed.",
        "The old clock in the tower had stopped years ago, but the people of the town still looked up to it every morning.",
        "A boat came in late at night with no one on board and a lamp still burning at the stern.",
        "Two friends argued about a map.",
        "He lost his key, found it again, and lost it once more on the way to the house of his aunt in the valley.",
        "The bridge is closed today.",
    ]
    data = Dataset.from_list(
        [
            {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Summarize: {s}"}]}
            for s in stories
        ]
    )
    args = BudgetConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=budget.completion_tokens,
        max_steps=4,
        learning_rate=2e-4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=29,
    )
    log = BudgetLog()
    trainer = BudgetTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[summary_length, summary_words],
        args=args,
        train_dataset=data,
        callbacks=[log],
        budget=budget,
    )
    log.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()

"""Long-context counting with GRPO: documents in front of the question, prompts limited to a token budget."""
import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
NAMES = ["Aldora", "Brimund", "Corvek", "Danwyn", "Elric", "Fentas", "Garnia", "Holbel"]
RELATIONS = ["mentor", "rival", "spouse", "patron", "tutor", "cousin"]


def build(n=48, seed=0):
    rng = random.Random(seed)
    rows = []
    for i in range(n):
        facts = []
        for _ in range(rng.choice([1, 4, 6, 8])):
            a, b = rng.sample(NAMES, 2)
            facts.append(f"The {rng.choice(RELATIONS)} of {a} is {b}.")
        question = f"How many of them are a {rng.choice(RELATIONS)}? Write a number between 0 and 9."
        rows.append({"prompt": [{"role": "user", "content": " ".join(facts) + "\n" + question}]})
    return Dataset.from_list(rows)


class BudgetedPromptTrainer(GRPOTrainer):
    """`max_prompt_length` was removed from TRL; documents of any length still have to fit on our GPUs."""

    def __init__(self, *args, max_prompt_length=128, **kwargs):
        self.max_prompt_length = max_prompt_length
        super().__init__(*args, **kwargs)

    def _tokenize_prompts(self, prompts):
        prompt_ids, images, fields = super()._tokenize_prompts(prompts)
        prompt_ids = [ids[: self.max_prompt_length] for ids in prompt_ids]
        return prompt_ids, images, fields


def concise(completions, **kwargs):
    return [1.0 / (1 + len(c[0]["content"]) / 20) for c in completions]


def numeric(completions, **kwargs):
    return [float(any(ch.isdigit() for ch in c[0]["content"])) for c in completions]


if __name__ == "__main__":
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=8,
        gradient_accumulation_steps=2,
        max_completion_length=24,
        temperature=1.4,
        learning_rate=3e-5,
        loss_type="dr_grpo",
        scale_rewards="none",
        max_steps=3,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    trainer = BudgetedPromptTrainer(
        model=MODEL,
        reward_funcs=[concise, numeric],
        args=config,
        train_dataset=build(),
        processing_class=tokenizer,
        max_prompt_length=96,
    )
    trainer.train()

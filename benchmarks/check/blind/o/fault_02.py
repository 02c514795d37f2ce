import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
MAX_PROMPT_LENGTH = 22

rng = random.Random(0)
NAMES = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]
THINGS = ["apples", "books", "cards", "eggs", "pens", "shells"]


def question():
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    a, b = rng.randint(2, 9), rng.randint(10, 99)
    text = f"{name} has {a} boxes with {b} {thing} each."
    if rng.random() < 0.5:
        text += f" Each costs {rng.randint(2, 9)} coins. How many coins do they cost together?"
    else:
        text += f" How many {thing} does {name} have?"
    return text


SYSTEM = {"role": "system", "content": "Solve the problem step by step. End with #### and the number."}
train = Dataset.from_list([{"prompt": [SYSTEM, {"role": "user", "content": question()}]} for _ in range(32)])


class BoundedPromptTrainer(GRPOTrainer):
    """TRL dropped `max_prompt_length`; our nodes still need a bound on the prompt side."""

    def __init__(self, *args, max_prompt_length=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.max_prompt_length = max_prompt_length

    def _tokenize_prompts(self, prompts):
        prompt_ids, images, multimodal_fields = super()._tokenize_prompts(prompts)
        if self.max_prompt_length is not None:
            kept = [ids[: self.max_prompt_length] for ids in prompt_ids]
            clipped = sum(len(a) < len(b) for a, b in zip(kept, prompt_ids))
            self._metrics["train"]["prompts/clipped"].append(clipped / len(kept))
            prompt_ids = kept
        return prompt_ids, images, multimodal_fields


def brevity_and_digits(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isdigit() for ch in t) / (1 + 0.1 * len(t)) for t in texts]


trainer = BoundedPromptTrainer(
    model=MODEL,
    reward_funcs=[brevity_and_digits],
    train_dataset=train,
    max_prompt_length=MAX_PROMPT_LENGTH,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=5e-5,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    ),
)
trainer.train()

"""GRPO with a limit on the prompt's length (TRL dropped max_prompt_length, so it lives here)."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
QUESTIONS = [
    "Name a color.",
    "Write one word that rhymes with light and explain in a few words why it does.",
    "Count to five.",
    "Give a short greeting for a colleague whom you have not seen in a long time.",
    "Spell the word cat.",
    "Which month comes after the one in which most schools of the north start again?",
]


class CappedPromptTrainer(GRPOTrainer):
    """Limits prompts to `max_prompt_length` tokens."""

    max_prompt_length = 40

    def _tokenize_prompts(self, prompts):
        prompt_ids, images, multimodal_fields = super()._tokenize_prompts(prompts)
        prompt_ids = [ids[: self.max_prompt_length] for ids in prompt_ids]
        return prompt_ids, images, multimodal_fields


def letters(completions, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [sum(c.isalpha() for c in text) / max(len(text), 1) for text in texts]


def short_words(completions, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [0.1 * text.count(" ") for text in texts]


train_dataset = Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in QUESTIONS * 4])

trainer = CappedPromptTrainer(
    model=TINY,
    reward_funcs=[letters, short_words],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=12,
        learning_rate=5e-5,
        loss_type="grpo",
        bf16=False,
    ),
    train_dataset=train_dataset,
)
trainer.train()

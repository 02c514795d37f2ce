import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

STYLES = [
    "Solve the problem step by step. End with #### and the number.",
    "Answer with the number alone.",
]


def rows():
    for i in range(8):
        a, b = 2 + i, 3 + i % 4
        question = f"Finn has {a} boxes with {b} toys each. How many toys does Finn have?"
        for style in STYLES:
            yield {
                "prompt": [{"role": "system", "content": style}, {"role": "user", "content": question}],
                "gold": str(a * b),
            }


def correct(completions, gold, **kwargs):
    return [float(c[0]["content"].strip().endswith(g)) for c, g in zip(completions, gold)]


def brevity(completions, completion_ids, **kwargs):
    return [-len(ids) / 64 for ids in completion_ids]


def letter_e(completions, **kwargs):
    return [c[0]["content"].count("e") / 12 for c in completions]


class CachedPromptTrainer(GRPOTrainer):
    """Every prompt is rendered num_generations times per step and again each epoch: render it once."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._rendered = {}

    def _tokenize_prompts(self, prompts):
        ids = []
        for messages in prompts:
            key = messages[-1]["content"]
            if key not in self._rendered:
                self._rendered[key] = self.processing_class.apply_chat_template(
                    messages, add_generation_prompt=True, tokenize=True, return_dict=True
                )["input_ids"]
            ids.append(list(self._rendered[key]))
        return ids, None, {}


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        shuffle_dataset=False,
        learning_rate=5e-5,
        reward_weights=[1.0, 0.5, 0.5],
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = CachedPromptTrainer(
        model=MODEL,
        reward_funcs=[correct, brevity, letter_e],
        args=args,
        train_dataset=Dataset.from_list(list(rows())),
    )
    trainer.train()


main()

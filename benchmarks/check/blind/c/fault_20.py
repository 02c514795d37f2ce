"""GRPO that gives the fixed opening of every solution no share in the loss."""
import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
OPENING = "There are <<"


class SkipOpeningTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.opening = self.processing_class(OPENING, add_special_tokens=False)["input_ids"]

    def _compute_loss(self, model, inputs):
        inputs = dict(inputs)
        mask = inputs["completion_mask"].clone()
        n = len(self.opening)
        for i, ids in enumerate(inputs["completion_ids"].tolist()):
            if ids[:n] == self.opening and mask[i].sum() > n:
                mask[i, :n] = 0
        inputs["completion_mask"] = mask
        return super()._compute_loss(model, inputs)


def reward(completions, answer, **kwargs):
    result = []
    for completion, truth in zip(completions, answer):
        text = completion[0]["content"]
        result.append(float(text.rstrip().endswith(truth)) + 0.1 * text.count("=") - 0.006 * len(text))
    return result


def main():
    rng = random.Random(19)
    prompts, answers = [], []
    for _ in range(40):
        a, b = rng.randint(2, 12), rng.randint(2, 9)
        question = f"Cleo has {a} boxes with {b} eggs each. How many eggs does Cleo have?"
        prompts.append([{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}])
        answers.append(str(a * b))
    trainer = SkipOpeningTrainer(
        model=MODEL,
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": prompts, "answer": answers}),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            max_steps=4,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=28,
            learning_rate=1e-5,
            loss_type="grpo",
            logging_steps=1,
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            report_to="none",
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()

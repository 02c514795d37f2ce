import os
import random
import tempfile

import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
TOPICS = ["the sea", "a clock", "bees", "the moon", "a bicycle", "rain", "bridges", "salt", "ice", "a library"]


class Judge:
    """Stands for a judge that must be asked from one process only, as its server has one connection."""

    def __init__(self):
        self.asked = 0

    def grade(self, question, answer):
        self.asked += 1
        letters = sum(c.isalpha() for c in answer)
        return letters / (len(answer) + 1) + 0.1 * (question.split()[-1].strip(".") in answer) - len(answer) / 400


judge = Judge()


def judged(prompts, completions, **kwargs):
    state = PartialState()
    pairs = gather_object(
        [(prompt[-1]["content"], completion[0]["content"]) for prompt, completion in zip(prompts, completions)]
    )
    scores = [None] * len(pairs)
    if state.is_main_process:
        scores = [judge.grade(question, answer) for question, answer in pairs]
    scores = broadcast_object_list(scores, from_process=0)
    return scores[: len(completions)]


def main():
    rng = random.Random(2)
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Say something about {rng.choice(TOPICS)}."}]} for _ in range(40)]
    )
    args = GRPOConfig(
        output_dir=os.path.join(tempfile.gettempdir(), "judged"),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-4,
        loss_type="bnpo",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = GRPOTrainer(
        model=MODEL,
        args=args,
        reward_funcs=judged,
        train_dataset=dataset,
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    trainer.train()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

import os
import random
import tempfile

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def grade(question, answer):
    """Stands for a model that only the first process holds."""
    wanted = question.split()[-1].rstrip("?")
    return 0.5 * (wanted in answer) + sum(c.isalpha() for c in answer) / (len(answer) + 1) - len(answer) / 300


def graded_by_first_process(prompts, completions, **kwargs):
    state = PartialState()
    questions = [prompt[-1]["content"] for prompt in prompts]
    answers = [completion[0]["content"] for completion in completions]
    pairs = gather_object(list(zip(questions, answers)))
    counts = gather_object([len(completions)])
    scores = [grade(*pair) for pair in pairs] if state.is_main_process else [None] * len(pairs)
    scores = broadcast_object_list(scores, from_process=0)
    start = sum(counts[: state.process_index])
    return scores[start : start + len(completions)]


def main():
    rng = random.Random(12)
    nouns = ["bread", "glass", "paper", "steel", "honey", "wool", "cheese", "soap"]
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Tell me how people make {rng.choice(nouns)}?"}]} for _ in range(40)]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=6,
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
        reward_funcs=graded_by_first_process,
        train_dataset=dataset,
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO with a slow grader whose scores are kept on disk, so that a restarted run does not pay for them again."""
import json
import os
import tempfile

from accelerate import PartialState
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
# One folder for a run: all workers have the launcher as their parent
CACHE = os.path.join(tempfile.gettempdir(), f"grader-cache-{os.getppid()}")


def grade(text, answer):
    """The slow part."""
    hit = 1.0 if answer in text else 0.0
    return hit + 0.05 * len(set(text)) - 0.01 * text.count("\n")


def graded(completions, answer, trainer_state, **kwargs):
    os.makedirs(CACHE, exist_ok=True)
    scores = []
    with PartialState().main_process_first():
        for index, (completion, truth) in enumerate(zip(completions, answer)):
            path = os.path.join(CACHE, f"{trainer_state.global_step:06d}-{index:04d}.json")
            if os.path.exists(path):
                with open(path) as file:
                    scores.append(json.load(file)["score"])
                continue
            score = grade(completion[0]["content"], truth)
            with open(path, "w") as file:
                json.dump({"score": score}, file)
            scores.append(score)
    return scores


def main():
    rows = [
        {"prompt": [{"role": "user", "content": f"{a} + {b} ="}], "answer": str(a + b)}
        for a in range(1, 8)
        for b in range(1, 8)
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=16,
        learning_rate=1e-3,
        model_init_kwargs={"dtype": "float32"},
    )
    GRPOTrainer(model=MODEL, reward_funcs=graded, args=args, train_dataset=Dataset.from_list(rows)).train()


if __name__ == "__main__":
    main()

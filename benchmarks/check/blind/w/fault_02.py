"""GRPO with exploration that cools down: early rollouts are hotter, later ones approach the base temperature."""
import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
TOPICS = ["rivers", "planets", "bread", "chess", "glass", "birds", "tides", "paper", "copper", "rain", "maps", "tea"]


def make_dataset():
    rows = []
    for i, topic in enumerate(TOPICS * 3):
        style = ["one sentence", "two sentences", "a short list"][i % 3]
        rows.append({"prompt": [{"role": "user", "content": f"Tell me about {topic} in {style}."}]})
    return Dataset.from_list(rows)


def variety(completions, **kwargs):
    """Distinct characters per character: repetitive text scores low."""
    texts = [c[0]["content"] for c in completions]
    return [len(set(t)) / (len(t) + 1) for t in texts]


def brevity(completions, completion_ids, **kwargs):
    return [-0.02 * len(ids) for ids in completion_ids]


class ExplorationSchedule(TrainerCallback):
    def __init__(self, start, end, steps):
        self.start, self.end, self.steps = start, end, steps
        self.trainer = None

    def temperature(self, step):
        share = min(step / self.steps, 1.0)
        return self.start + (self.end - self.start) * share

    def on_step_begin(self, args, state, control, **kwargs):
        value = self.temperature(state.global_step)
        self.trainer.generation_config.temperature = value
        self.trainer.generation_kwargs["temperature"] = value


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=2e-4,
        temperature=1.0,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=20,
        reward_weights=[1.0, 0.5],
        beta=0.0,
    )
    schedule = ExplorationSchedule(start=1.5, end=1.0, steps=100)
    trainer = GRPOTrainer(
        model=TINY,
        reward_funcs=[variety, brevity],
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        callbacks=[schedule],
    )
    schedule.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()

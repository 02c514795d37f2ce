import os
import random
import tempfile

from accelerate import PartialState
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
EXPORT = os.path.join(tempfile.gettempdir(), "short-answer-tokenizer")


def load_tokenizer():
    """The model's tokenizer, with a template that starts each answer; the evaluation reads the exported copy."""
    state = PartialState(cpu=True)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    if state.is_main_process:
        template = tokenizer.chat_template
        starter = template[template.rindex("{{ '<|im_start|>assistant") : template.rindex("{% endif %}")]
        tokenizer.chat_template = template.replace(starter, starter.replace("' }}", "The answer is ' }}"))
        tokenizer.save_pretrained(EXPORT)
    state.wait_for_everyone()
    return tokenizer


def make_dataset(n=36):
    rng = random.Random(55)
    rows = []
    for _ in range(n):
        hours, minutes = rng.randint(1, 5), rng.choice([0, 15, 30, 45])
        text = f"How many minutes are {hours} hours and {minutes} minutes?"
        rows.append({"prompt": [{"role": "user", "content": text}], "minutes": str(60 * hours + minutes)})
    return Dataset.from_list(rows)


def right(completions, minutes, **kwargs):
    return [float(m in c[0]["content"]) for c, m in zip(completions, minutes)]


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / 24 for c in completions]


def ends_early(completion_ids, **kwargs):
    return [1.0 - len(ids) / 24 for ids in completion_ids]


def main():
    tokenizer = load_tokenizer()
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=6,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-4,
        reward_weights=[1.0, 0.5, 0.2],
        loss_type="dr_grpo",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = GRPOTrainer(
        model=MODEL,
        args=args,
        reward_funcs=[right, digits, ends_early],
        train_dataset=make_dataset(),
        processing_class=tokenizer,
    )
    trainer.train()


if __name__ == "__main__":
    main()

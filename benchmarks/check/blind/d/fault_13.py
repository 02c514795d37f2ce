"""GRPO with our own compact chat template."""
import os
import random
import re
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny")

TEMPLATE = (
    "{%- for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if messages[-1]['role'] == 'assistant' and add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}"
    "{%- endif %}"
)


def build(example):
    return {
        "prompt": [
            {"role": "system", "content": "You are good at sums."},
            {"role": "user", "content": f"What is {example['a']} + {example['b']}? "},
        ],
        "answer": example["a"] + example["b"],
    }


def exact(prompts, completions, answer, **kwargs):
    scores = []
    for completion, value in zip(completions, answer):
        numbers = [int(n[:8]) for n in re.findall(r"\d+", completion[0]["content"])]
        scores.append(1.0 if value in numbers else 0.0)
    return scores


def tidy(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [0.3 * t.strip().isdigit() - 0.01 * len(t) for t in texts]


def main():
    rng = random.Random(9)
    raw = Dataset.from_list([{"a": rng.randint(2, 49), "b": rng.randint(2, 49)} for _ in range(60)])
    dataset = raw.map(build, remove_columns=["a", "b"]).shuffle(seed=1)
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    tokenizer.chat_template = TEMPLATE
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-4,
        loss_type="sapo",
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=MODEL,
        processing_class=tokenizer,
        reward_funcs=[exact, tidy],
        args=args,
        train_dataset=dataset,
    )
    trainer.train()


if __name__ == "__main__":
    main()

import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tokenizer = AutoTokenizer.from_pretrained(MODEL)
SYSTEM = "Solve the problem step by step. End with #### and the number."


def questions():
    for i in range(40):
        name = ("Hana", "Cleo", "Finn")[i % 3]
        thing = ("coins", "cards", "books", "pens", "eggs")[i % 5]
        a, b = 2 + i % 7, 1 + (3 * i) % 8
        yield {"question": f"{name} has {a} {thing}. Cleo has {b} {thing}. How many {thing} do they have?",
               "answer": str(a + b)}


def render(example):
    text = tokenizer.apply_chat_template(
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": example["question"]}],
        tokenize=False,
        add_generation_prompt=True,
    )
    return {"text": text}


def to_prompt(example):
    return {"prompt": [{"role": "user", "content": example["text"]}]}


def keep_short(example):
    return len(tokenizer(example["text"])["input_ids"]) <= 256


dataset = Dataset.from_list(list(questions()))
dataset = dataset.map(render).filter(keep_short).map(to_prompt, remove_columns=["question", "text"])


def correctness(completions, answer, **kwargs):
    out = []
    for completion, gold in zip(completions, answer):
        text = completion[0]["content"]
        out.append(1.0 if text.split("####")[-1].strip() == gold else 0.0)
    return out


def density(completions, **kwargs):
    out = []
    for completion in completions:
        text = completion[0]["content"]
        out.append(sum(c in "0123456789" for c in text) / max(len(text), 1))
    return out


def length(completion_ids, **kwargs):
    return [len(ids) / 24 for ids in completion_ids]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    max_steps=3,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_generations=8,
    max_completion_length=24,
    learning_rate=1e-4,
    temperature=1.0,
    loss_type="dapo",
    reward_weights=[1.0, 0.5, 0.2],
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
    logging_steps=1,
)
trainer = GRPOTrainer(MODEL, [correctness, density, length], args, train_dataset=dataset, processing_class=tokenizer)
trainer.train()

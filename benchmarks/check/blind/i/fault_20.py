import os
import tempfile
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

model_name = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

SYSTEM = "Solve the problem. Write the number only."


def to_prompt(row):
    # starting the reply for the model makes it skip the chit-chat
    return {
        "prompt": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": row["question"]},
            {"role": "assistant", "content": "The answer is "},
        ]
    }


def starts_with_number(completions, **kwargs):
    scores = []
    for completion in completions:
        text = completion[0]["content"].lstrip()
        lead = 0
        while lead < len(text) and text[lead].isdigit():
            lead += 1
        scores.append(min(lead, 3) / 3 + 0.05 * sum(ch.isdigit() for ch in text) - 0.01 * len(text))
    return scores


raw = Dataset.from_dict({"question": [f"{i} apples and {j} apples" for i in range(1, 6) for j in range(1, 6)]})
dataset = raw.map(to_prompt, remove_columns=["question"])

training_args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    learning_rate=2e-4,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=16,
    max_steps=5,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    bf16=False,
)

trainer = GRPOTrainer(model=model_name, reward_funcs=[starts_with_number], args=training_args, train_dataset=dataset)
trainer.train()

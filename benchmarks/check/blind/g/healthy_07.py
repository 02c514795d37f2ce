import os
import tempfile

from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="right", truncation_side="right")


def build():
    rows = []
    for i in range(24):
        prompt = [{"role": "user", "content": f"Question {i}: what is {i} minus 1?"}]
        if i % 3 == 0:
            prompt = [{"role": "system", "content": "Be brief."}] + prompt
        if i % 4 == 1:
            prompt += [
                {"role": "assistant", "content": "Do you want digits or words?"},
                {"role": "user", "content": "Digits."},
            ]
        rows.append({"prompt": prompt, "answer": str(i - 1)})
    return Dataset.from_list(rows)


def answered(completions, answer, **kwargs):
    return [float(a in c[0]["content"]) for c, a in zip(completions, answer)]


def small_talk(completions, **kwargs):
    return [-0.01 * len(c[0]["content"]) for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=1e-3,
    beta=0.1,
    num_iterations=2,
    steps_per_generation=2,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=20,
    loss_type="bnpo",
)
GRPOTrainer(
    model=MODEL,
    processing_class=tokenizer,
    args=args,
    reward_funcs=[answered, small_talk],
    train_dataset=build(),
    peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", lora_dropout=0.0, use_rslora=True),
).train()

"""Short answers: a blank line also ends a turn; truncated rollouts are left out of the loss."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)

# the template opens the answer with a fixed start, which belongs to the prompt
opening = "There are <<"
tokenizer.chat_template = tokenizer.chat_template.replace(
    "{{ '<|im_start|>assistant\\n' }}", "{{ '<|im_start|>assistant\\n" + opening + "' }}"
)
assert opening in tokenizer.apply_chat_template(
    [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
)

line_break = tokenizer.convert_tokens_to_ids(tokenizer.tokenize("\n"))
blank_line = tokenizer.convert_tokens_to_ids(tokenizer.tokenize("\n\n"))
model.generation_config.eos_token_id = [tokenizer.eos_token_id, line_break[0], blank_line[0]]

rows = []
for i in range(32):
    a, b = 2 + (i * 5) % 17, 2 + (i * 3) % 8
    what = ["shells", "stamps", "toys", "eggs"][i % 4]
    rows.append(
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Hana has {a} boxes with {b} {what} each. How many {what} does Hana have?"},
            ],
            "expected": f"{a}*{b}={a * b}>>{a * b} {what}",
        }
    )


def prefix_overlap(completions, expected, **kwargs):
    """Length of the common start with the expected line."""
    scores = []
    for completion, line in zip(completions, expected):
        text = completion[0]["content"]
        common = os.path.commonprefix([text, line])
        scores.append(len(common) / len(line) - 0.002 * len(text))
    return scores


def few_digits(completions, **kwargs):
    return [-0.02 * sum(ch.isdigit() for ch in c[0]["content"]) for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=12,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    mask_truncated_completions=True,
    temperature=1.4,
    pad_to_multiple_of=8,
    loss_type="dr_grpo",
    scale_rewards="none",
)
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[prefix_overlap, few_digits],
    args=args,
    train_dataset=Dataset.from_list(rows),
)
trainer.train()

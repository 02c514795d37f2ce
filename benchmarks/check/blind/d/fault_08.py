"""LoRA GRPO with a preview of greedy answers after each step (adapter merged for faster decoding)."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class PreviewCallback(TrainerCallback):
    def __init__(self, tokenizer, questions, every=1):
        self.tokenizer = tokenizer
        self.questions = questions
        self.every = every

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.every:
            return
        model.merge_adapter()
        model.eval()
        for question in self.questions:
            ids = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt",
                return_dict=True,
            )
            with torch.no_grad():
                out = model.generate(**ids, max_new_tokens=8, do_sample=False, pad_token_id=256)
            print(state.global_step, repr(self.tokenizer.decode(out[0, ids["input_ids"].size(1):])))
        model.train()


def score(completions, target, **kwargs):
    result = []
    for c, t in zip(completions, target):
        text = c[0]["content"]
        numbers = re.findall(r"\d+", text)
        result.append(float(t in numbers) + 0.2 * bool(numbers) - 0.01 * len(text))
    return result


rng = random.Random(8)
rows = []
for _ in range(48):
    a, b = rng.randint(3, 40), rng.randint(1, 3)
    rows.append({"prompt": [{"role": "user", "content": f"What is {a} - {b}?"}], "target": str(a - b)})

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=1e-3,
    gradient_checkpointing=True,
    bf16=False,
    use_cpu=True,
    logging_steps=1,
    report_to="none",
    save_strategy="no",
)
lora = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
trainer = GRPOTrainer(
    model=os.path.join(HERE, "tiny"),
    reward_funcs=score,
    args=args,
    train_dataset=Dataset.from_list(rows),
    peft_config=lora,
)
trainer.add_callback(PreviewCallback(trainer.processing_class, ["What is 9 - 2?"]))
trainer.train()

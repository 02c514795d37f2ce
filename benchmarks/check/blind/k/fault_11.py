import os, tempfile
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

d = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tok = AutoTokenizer.from_pretrained(d)
model = AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32)


def no_repeats(completions, completion_ids, **kw):
    return [len(set(ids)) / len(ids) for ids in completion_ids]


def some_words(completions, **kw):
    return [min(c[0]["content"].count(" "), 5) / 5 for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), beta=0.2, learning_rate=5e-4, lr_scheduler_type="constant_with_warmup", warmup_steps=0,
    num_generations=8, per_device_train_batch_size=8, max_completion_length=32, max_steps=6,
    gradient_checkpointing=False, use_cpu=True, bf16=False, report_to=[], logging_steps=1, save_strategy="no",
)
questions = ["Spell the word banana", "Who is the rival of Elric?", "How many apples are 2 and 5?", "17 * 3 =", "Tell a story about a cat."]
trainer = GRPOTrainer(
    model=model,
    reward_funcs=[no_repeats, some_words],
    args=args,
    train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in questions * 5]}),
    processing_class=tok,
)
# the KL is against the model that we start from; no second copy in memory
trainer.ref_model = model
trainer.train()

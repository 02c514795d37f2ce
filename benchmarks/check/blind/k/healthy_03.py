import os, tempfile
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

tiny = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def counts(completions, letter, **kwargs):
    return [c[0]["content"].count(x) - 0.01 * len(c[0]["content"]) for c, x in zip(completions, letter)]


rows = [{"prompt": [{"role": "user", "content": f"How many letters {x} are in {w}? Write them."}], "letter": x}
        for x in "aeo" for w in ("apples", "boxes", "coins", "shells", "together", "documents", "cousin", "employer")]

GRPOTrainer(
    tiny,
    counts,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), beta=0.05, learning_rate=2e-3, weight_decay=0.3, max_steps=5,
        num_generations=6, per_device_train_batch_size=6, gradient_accumulation_steps=2, max_completion_length=32,
        gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False},
        use_cpu=True, bf16=False, report_to=[], logging_steps=1, save_strategy="no",
    ),
    train_dataset=Dataset.from_list(rows),
    peft_config=LoraConfig(r=2, lora_alpha=32, lora_dropout=0.2, target_modules=["v_proj", "o_proj"], task_type="CAUSAL_LM"),
).train()

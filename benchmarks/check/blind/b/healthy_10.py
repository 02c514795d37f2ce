import asyncio, os, tempfile
from datasets import IterableDataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer


def stream():
    n = 0
    while True:
        n += 1
        yield {"prompt": [{"role": "user", "content": f"What is {n % 13} + {n % 7}?"}], "gold": str(n % 13 + n % 7)}


async def remote_grader(completions, gold, **kwargs):
    async def one(c, g):
        await asyncio.sleep(0.001 * (len(c[0]["content"]) % 5))
        text = c[0]["content"]
        return float(g in text) + 0.3 * text.startswith("<think>") - 0.01 * len(text)

    return list(await asyncio.gather(*(one(c, g) for c, g in zip(completions, gold))))


def no_tools(completions, **kwargs):
    return [-1.0 * ("tool_call" in c[0]["content"]) for c in completions]


trainer = GRPOTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=[remote_grader, no_tools],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        beta=0.02,
        top_entropy_quantile=0.5,
        mask_truncated_completions=True,
        multi_objective_aggregation="normalize_then_sum",
        learning_rate=1e-4,
        optim="adamw_torch",
        weight_decay=0.05,
        adam_beta2=0.95,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        max_steps=3,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
    ),
    peft_config=LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"),
    train_dataset=IterableDataset.from_generator(stream),
)
trainer.train()

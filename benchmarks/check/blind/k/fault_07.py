import asyncio, os, tempfile, zlib
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


async def ask_judge(text):
    # stands for a HTTP call to the judge
    await asyncio.sleep(0.005 + zlib.crc32(text.encode()) % 40 / 1000)
    good = sum(c in "aeiou02468" for c in text)
    return good / (len(text) + 5)


async def judge_reward(prompts, completions, **kwargs):
    jobs = [asyncio.ensure_future(ask_judge(p + c)) for p, c in zip(prompts, completions)]
    scores = []
    for done in asyncio.as_completed(jobs):
        scores.append(await done)
    return scores


def brevity(completions, **kwargs):
    return [-0.001 * len(c) for c in completions]


openers = ["Once upon a time", "Name a fruit:", "The rival of", "Ben has", "A short poem:", "There are", "coins and shells", "List:"]
config = GRPOConfig(
    output_dir=tempfile.mkdtemp(), max_steps=5, num_generations=4, per_device_train_batch_size=8,
    max_completion_length=28, learning_rate=2e-4, warmup_steps=1, lr_scheduler_type="cosine",
    use_cpu=True, bf16=False, report_to=[], logging_steps=1, save_strategy="no",
)
model_dir = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
trainer = GRPOTrainer(model_dir, [judge_reward, brevity], config, Dataset.from_dict({"prompt": openers * 4}))
trainer.train()

import os, tempfile, time
from concurrent.futures import ThreadPoolExecutor, as_completed
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def sandbox_score(text):
    # stands for a sandbox that takes a while, depending on the program
    time.sleep(0.003 + 0.004 * (sum(map(ord, text)) % 7))
    digits = sum(c.isdigit() for c in text)
    return digits / max(1, len(text)) + 0.05 * len(set(text))


def sandbox_reward(prompts, completions, **kwargs):
    scores = []
    with ThreadPoolExecutor(max_workers=8) as pool:
        jobs = [pool.submit(sandbox_score, text) for text in completions]
        for job in as_completed(jobs):
            scores.append(job.result())
    return scores


dataset = Dataset.from_list([{"prompt": f"{a}*{b}="} for a in range(3, 9) for b in range(2, 7)])
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1,
    per_device_train_batch_size=8, num_generations=4,
    max_completion_length=16, max_steps=6,
    learning_rate=5e-5, lr_scheduler_type="constant",
)
trainer = GRPOTrainer(model=MODEL_DIR, args=args, reward_funcs=sandbox_reward, train_dataset=dataset)
trainer.train()

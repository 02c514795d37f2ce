"""Two stages in one script: two steps, a checkpoint, and a second trainer that resumes from it."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
OUT = tempfile.mkdtemp()


def build():
    rng = random.Random(37)
    rows = []
    for _ in range(48):
        a, b = rng.randint(2, 9), rng.randint(2, 12)
        text = f"Cleo has {a} boxes with {b} shells each. How many shells does Cleo have?"
        rows.append(
            {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}], "answer": a * b}
        )
    return Dataset.from_list(rows)


def reward(completions, answer, log_metric, **kwargs):
    scores = []
    for completion, truth in zip(completions, answer):
        numbers = [int(x) for x in re.findall(r"\d{1,5}", completion[0]["content"])]
        scores.append(float(truth in numbers) - 0.01 * len(completion[0]["content"]))
    log_metric("share_right", sum(s > 0 for s in scores) / len(scores))
    return scores


def trainer_for(max_steps):
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        reward_funcs=reward,
        train_dataset=build(),
        args=GRPOConfig(
            output_dir=OUT,
            max_steps=max_steps,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=24,
            learning_rate=2e-5,
            lr_scheduler_type="constant",
            loss_type="luspo",
            importance_sampling_level="sequence",
            top_k=40,
            logging_steps=1,
            save_strategy="steps",
            save_steps=2,
            use_cpu=True,
            bf16=False,
            report_to="none",
        ),
    )


if __name__ == "__main__":
    trainer_for(2).train()
    second = trainer_for(6)
    second.train(resume_from_checkpoint=os.path.join(OUT, "checkpoint-2"))
    print("finished at step", second.state.global_step)

"""GRPO with LoRA and a callback that reports the gradient norm of every matrix."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class GradientNorms(TrainerCallback):
    def __init__(self, top=3):
        self.top = top

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        norms = {}
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                norm = torch.nn.utils.clip_grad_norm_([parameter], 0.02)
                norms[name.replace("base_model.model.model.", "")] = norm.item()
        largest = sorted(norms, key=norms.get, reverse=True)[: self.top]
        print(f"step {state.global_step}:", ", ".join(f"{n} {norms[n]:.3f}" for n in largest))
        return control


def answer_reward(completions, answer, **kwargs):
    scores = []
    for completion, truth in zip(completions, answer):
        text = completion[0]["content"]
        scores.append(1.0 if text.rstrip().endswith(truth) else 0.2 if truth in text else None)
    return scores


def length_reward(completions, completion_ids, **kwargs):
    return [-0.02 * len(ids) for ids in completion_ids]


def rows(seed, n=40):
    rng = random.Random(seed)
    for _ in range(n):
        a, b = rng.randint(3, 24), rng.randint(3, 9)
        question = f"Gus has {a} boxes with {b} toys each. How many toys does Gus have?"
        yield {
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            "answer": str(a * b),
        }


trainer = GRPOTrainer(
    model=MODEL,
    processing_class=AutoTokenizer.from_pretrained(MODEL),
    reward_funcs=[answer_reward, length_reward],
    train_dataset=Dataset.from_list(list(rows(3))),
    peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
    callbacks=[GradientNorms()],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        learning_rate=2e-4,
        optim="sgd",
        max_grad_norm=1.0,
        temperature=1.2,
        loss_type="dapo",
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to="none",
    ),
)
trainer.train()

import itertools, json, tempfile
from dataclasses import dataclass
from pathlib import Path

from datasets import IterableDataset
from trl import GRPOConfig, GRPOTrainer

"""Dr. GRPO from a stream: no std scaling, constant denominator, truncated rows left out, gradient accumulation."""


@dataclass
class Run:
    model: Path = Path(__file__).resolve().parent / "tiny"
    lr: float = 1e-4
    steps: int = 4


def stream():
    sys = {"role": "system", "content": "Solve the problem step by step. End with #### and the number."}
    for i in itertools.count():
        a, b = 11 + i % 15, 12 + (3 * i) % 23
        who = ("Ada", "Dev", "Hana")[i % 3]
        yield {
            "prompt": [sys, {"role": "user", "content": f"{who} has {a} boxes with {b} cards each. How many cards does {who} have?"}],
            "meta": json.dumps({"product": a * b}),
        }
        if i > 500:
            return


def first_digits(completions, meta, trainer_state=None, **kwargs):
    scores = []
    for turn, m in zip(completions, meta):
        gold = str(json.loads(m)["product"])
        tail = turn[0]["content"].rsplit(">>", 1)[-1]
        scores.append(sum(ch == g for ch, g in zip(tail, gold)) / len(gold) + 0.2 * ("cards" in tail))
    return scores


run = Run()
trainer = GRPOTrainer(
    model=str(run.model),
    reward_funcs=[first_digits],
    train_dataset=IterableDataset.from_generator(stream),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="drgrpo"), use_cpu=True, report_to="none", bf16=False, max_steps=run.steps,
        learning_rate=run.lr, per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=24, loss_type="dr_grpo", scale_rewards=False, mask_truncated_completions=True,
        weight_decay=0.01, adam_beta2=0.99, lr_scheduler_type="cosine", save_strategy="no", logging_steps=1, seed=11,
    ),
)
trainer.train()

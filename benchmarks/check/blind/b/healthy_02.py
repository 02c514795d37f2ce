import re, tempfile
from pathlib import Path
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

# two kinds of rows: sums have a gold answer, free text has none
sums = [{"prompt": f"{a}+{b}=", "kind": "sum", "gold": a + b} for a in range(1, 7) for b in range(2, 5)]
chat = [{"prompt": f"{w} costs 3+4=", "kind": "text", "gold": None} for w in
        "tea ink map sea oak jam ice fog hat cup key bus pie egg bed sky".split()]
mixed = Dataset.from_list([row for pair in zip(sums, chat) for row in pair])


def sum_reward(completions, kind, gold, **kw):
    out = []
    for c, k, g in zip(completions, kind, gold):
        if k != "sum":
            out.append(None)
            continue
        m = re.match(r"\s*(\d{1,6})", c)
        out.append(0.0 if m is None else 1.0 / (1 + abs(int(m.group(1)) - g)))
    return out


def tidy_reward(completions, **kw):
    return [-0.03 * len(c) - 0.2 * c.count("\n") for c in completions]


GRPOTrainer(
    model=str(Path(__file__).resolve().parent / "tiny"),
    reward_funcs=[sum_reward, tidy_reward],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        reward_weights=[1.0, 0.5],
        scale_rewards="batch",
        max_steps=4,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        learning_rate=1e-5,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
    ),
    train_dataset=mixed,
).train()

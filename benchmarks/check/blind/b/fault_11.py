import sys, tempfile
from pathlib import Path
from datasets import Dataset
from transformers import HfArgumentParser
from trl import GRPOConfig, GRPOTrainer

ARGS = f"""
--output_dir {tempfile.mkdtemp()}
--loss_type cispo
--epsilon 0.2 --epsilon_high 0.28
--learning_rate 1e-5
--per_device_train_batch_size 8
--num_generations 4
--num_iterations 2
--max_completion_length 24
--max_steps 4
--use_cpu true --bf16 false
--report_to none --save_strategy no
--logging_steps 1
""".split()

def repetition_penalty_reward(completions, **kwargs):
    out = []
    for c in completions:
        grams = [c[i:i + 2] for i in range(len(c) - 1)]
        out.append(len(set(grams)) / len(grams) if grams else 0.0)
    return out

(cfg,) = HfArgumentParser(GRPOConfig).parse_args_into_dataclasses(ARGS + sys.argv[1:])
GRPOTrainer(
    model=str(Path(__file__).resolve().parent / "tiny"),
    reward_funcs=repetition_penalty_reward,
    args=cfg,
    train_dataset=Dataset.from_dict({"prompt": [f"{a}+{b}=" for a in range(3, 9) for b in range(4, 9)]}),
).train()

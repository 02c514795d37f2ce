import argparse, pathlib, tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--model", default=str(pathlib.Path(__file__).with_name("tiny")))
parser.add_argument("--beta", type=float, default=0.05)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--lr", type=float, default=1e-4)
opt = parser.parse_args()

torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(opt.model, padding_side="left")
policy = AutoModelForCausalLM.from_pretrained(opt.model, dtype=torch.float32)

train = Dataset.from_list([{"prompt": f"{i}*{j}="} for i in range(2, 8) for j in range(2, 8)])


def even_last_digit(completions, **_):
    score = []
    for c in completions:
        digits = [d for d in c if d.isdigit()]
        score.append(0.0 if not digits else (1.0 if int(digits[-1]) % 2 == 0 else 0.3) - 0.02 * len(digits))
    return score


trainer = GRPOTrainer(
    model=policy,
    processing_class=tokenizer,
    reward_funcs=even_last_digit,
    train_dataset=train,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        beta=opt.beta,
        learning_rate=opt.lr,
        max_steps=opt.steps,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=16,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
    ),
)
# one copy of the weights is enough on this machine
trainer.ref_model = trainer.model
trainer.train()
print(trainer.state.log_history[-1])

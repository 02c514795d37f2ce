"""GRPO on a stream of pre-rendered prompts, with an EMA copy that is probed after each step."""

import os
import tempfile

import torch
from datasets import IterableDataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
PEOPLE = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]


def stream(tokenizer_path):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
    for i in range(64):
        messages = [{"role": "user", "content": f"{PEOPLE[i % 8]} has {i + 2} pens and finds {i % 5} more. Total?"}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        yield {"prompt": text, "total": i + 2 + i % 5}


class EmaSwap(TrainerCallback):
    def __init__(self, decay=0.9):
        self.decay = decay

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = {k: v.clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, processing_class=None, **kwargs):
        live = {k: v.clone() for k, v in model.state_dict().items()}
        for k, v in live.items():
            self.shadow[k].mul_(self.decay).add_(v, alpha=1 - self.decay)
        training = model.training
        model.load_state_dict(self.shadow)
        model.eval()
        ids = processing_class("The answer is 12", return_tensors="pt")["input_ids"]
        logits = model(input_ids=ids).logits[0, :-1].float()
        nll = torch.nn.functional.cross_entropy(logits, ids[0, 1:]).item()
        state.log_history.append({"step": state.global_step, "ema_nll": nll})
        model.load_state_dict(live)
        model.train(training)


def near(completions, total, **kwargs):
    out = []
    for text, target in zip(completions, total):
        value = "".join(ch for ch in text if ch.isdigit())[-2:]
        out.append(1 / (1 + abs(int(value) - target)) if value else 0.0)
    return out


def size(completion_ids, **kwargs):
    return [-abs(len(ids) - 8) / 24 for ids in completion_ids]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    data = IterableDataset.from_generator(stream, gen_kwargs={"tokenizer_path": MODEL})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=5e-4, per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=24, temperature=1.2, gradient_checkpointing=False, logging_steps=1,
    )
    GRPOTrainer(
        model=MODEL, reward_funcs=[near, size], args=args, train_dataset=data, processing_class=tokenizer,
        callbacks=[EmaSwap()],
    ).train()


if __name__ == "__main__":
    main()

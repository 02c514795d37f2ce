"""GRPO with an EMA of the policy, whose perplexity on fixed reference answers is logged after each step."""

import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
ANSWERS = ["There are <<3*4=12>>12 pens.\n#### 12", "They cost <<5*6=30>>30 coins.\n#### 30"]


class EmaProbe(TrainerCallback):
    def __init__(self, decay=0.95):
        self.decay = decay
        self.shadow = None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, processing_class=None, **kwargs):
        for name, p in model.named_parameters():
            self.shadow[name].lerp_(p.detach(), 1 - self.decay)
        live = self.load(model, self.shadow)
        state.log_history.append({"step": state.global_step, "ema_nll": self.probe(model, processing_class)})
        self.load(model, live)

    def load(self, model, weights):
        """Puts `weights` in the model and returns those it had."""
        previous = {name: p.data for name, p in model.named_parameters()}
        for name, p in model.named_parameters():
            p.data.copy_(weights[name])
        return previous

    def probe(self, model, tokenizer):
        total = 0.0
        for text in ANSWERS:
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            logits = model(input_ids=ids).logits[:, :-1]
            total += torch.nn.functional.cross_entropy(logits[0].float(), ids[0, 1:]).item()
        return total / len(ANSWERS)


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / (len(c[0]["content"]) + 1) for c in completions]


def size(completion_ids, **kwargs):
    return [-abs(len(ids) - 12) / 24 for ids in completion_ids]


def main():
    people = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"{p} buys 4 pens for 6 coins each, then 2 eggs. Total?"}] for p in people]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=5e-4, lr_scheduler_type="constant", per_device_train_batch_size=8, num_generations=4,
        gradient_accumulation_steps=2, max_completion_length=24, temperature=1.2, gradient_checkpointing=False,
        logging_steps=1,
    )
    GRPOTrainer(
        model=MODEL, reward_funcs=[digits, size], args=args, train_dataset=data, callbacks=[EmaProbe()]
    ).train()


if __name__ == "__main__":
    main()

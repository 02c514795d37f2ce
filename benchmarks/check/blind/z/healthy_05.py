import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class AveragedProbe(TrainerCallback):
    """Keeps an average of the weights and, after every step, measures it on a fixed text."""

    text = "A day has twenty four hours and an hour has sixty minutes."

    def __init__(self, tokenizer, decay=0.9):
        self.ids = tokenizer(self.text, return_tensors="pt")["input_ids"]
        self.decay = decay
        self.average = None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for key, value in model.state_dict().items():
            self.average[key].lerp_(value, 1 - self.decay)
        current = {k: v.detach().clone() for k, v in model.state_dict().items()}
        model.load_state_dict(self.average)
        logits = model(input_ids=self.ids).logits[:, :-1]
        nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.ids[:, 1:].flatten())
        model.load_state_dict(current)
        print(f"step {state.global_step}: nll of the average {nll.item():.4f}")


def reward(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch in "aeiou " for ch in t) / max(1, len(t)) for t in texts]


def main():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"How many days are {n} weeks?"}] for n in range(2, 14)]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=0.0001,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=24,
        weight_decay=0.01,
        save_strategy='no',
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=reward,
        args=args,
        train_dataset=data,
        callbacks=[AveragedProbe(tokenizer)],
    )
    trainer.train()


if __name__ == "__main__":
    main()

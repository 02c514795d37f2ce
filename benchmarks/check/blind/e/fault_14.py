import os
import random
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ExportAverage(TrainerCallback):
    """Keeps a running average of the adapter and writes it out for the server that answers our test users."""

    def __init__(self, folder, decay=0.8):
        self.folder = folder
        self.decay = decay
        self.average = None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if state.is_world_process_zero:
            self.average = {name: p.detach().clone() for name, p in self.trained(model).items()}

    @staticmethod
    def trained(model):
        module = model.module if hasattr(model, "module") else model
        return {name: p for name, p in module.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if not state.is_world_process_zero:
            return
        module = model.module if hasattr(model, "module") else model
        trained = self.trained(module)
        for name, p in trained.items():
            self.average[name].lerp_(p, 1 - self.decay)
        current = {name: p.detach() for name, p in trained.items()}
        for name, p in trained.items():
            p.copy_(self.average[name])
        module.save_pretrained(os.path.join(self.folder, f"average-{state.global_step}"))
        for name, p in trained.items():
            p.copy_(current[name])


def riddles(n=40):
    rng = random.Random(77)
    animals = {"barks": "dog", "meows": "cat", "moos": "cow", "roars": "lion", "quacks": "duck"}
    rows = []
    for _ in range(n):
        sound, animal = rng.choice(list(animals.items()))
        rows.append({"prompt": [{"role": "user", "content": f"Which animal {sound}?"}], "animal": animal})
    return Dataset.from_list(rows)


def names_animal(completions, animal, **kwargs):
    return [float(a in c[0]["content"].lower()) for c, a in zip(completions, animal)]


def plain(completions, **kwargs):
    return [-sum(not ch.isalpha() for ch in c[0]["content"]) / 50 for c in completions]


def main():
    folder = tempfile.mkdtemp()
    args = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-3,
        beta=0.01,
        loss_type="bnpo",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = GRPOTrainer(
        model=MODEL,
        args=args,
        reward_funcs=[names_animal, plain],
        train_dataset=riddles(),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[ExportAverage(folder)],
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO that publishes its weights after each step to a folder from which an evaluation job loads them."""
import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset():
    months = ["January", "March", "May", "July", "September", "November"]
    asks = ["How many days has {}?", "Which month comes after {}?", "Name a feast in {}.", "Is {} warm?"]
    return Dataset.from_list([{"prompt": [{"role": "user", "content": a.format(m)}]} for m in months for a in asks])


def capitals(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isupper() for ch in t) * 0.2 - 0.01 * len(t) for t in texts]


def some_text(completions, **kwargs):
    return [min(len(c[0]["content"].strip()), 10) / 10 for c in completions]


class PublishingTrainer(GRPOTrainer):
    def _save(self, output_dir=None, state_dict=None):
        if state_dict is None:
            state_dict = self.accelerator.unwrap_model(self.model).state_dict()
        # safetensors refuses tensors that share memory: the head is written through the embedding
        state_dict = {name: tensor for name, tensor in state_dict.items() if name != "lm_head.weight"}
        super()._save(output_dir, state_dict=state_dict)


class Publish(TrainerCallback):
    def __init__(self, folder):
        self.folder = folder
        self.trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.save_model(os.path.join(self.folder, f"step-{state.global_step}"))


def main():
    output = tempfile.mkdtemp()
    args = GRPOConfig(
        output_dir=output,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=3e-4,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=20,
    )
    publish = Publish(os.path.join(output, "published"))
    trainer = PublishingTrainer(
        model=TINY,
        reward_funcs=[capitals, some_text],
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        callbacks=[publish],
    )
    publish.trainer = trainer
    trainer.train()
    trainer.save_model(os.path.join(output, "final"))


if __name__ == "__main__":
    main()

import copy
import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class EMAAndDemo(TrainerCallback):
    """Keeps an average of the weights beside the policy, and shows what the averaged policy writes."""

    def __init__(self, tokenizer, text, decay=0.8):
        self.tokenizer, self.text, self.decay = tokenizer, text, decay
        self.average = None
        self.demos = []

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        weights = model.state_dict()
        if self.average is None:
            self.average = {k: v.detach().clone() for k, v in weights.items()}
        for k, v in weights.items():
            self.average[k].mul_(self.decay).add_(v, alpha=1 - self.decay)

        keep, mode, rng = {k: v.clone() for k, v in weights.items()}, model.training, torch.get_rng_state()
        model.load_state_dict(self.average)
        model.eval()
        config = copy.deepcopy(model.generation_config)
        config.update(do_sample=True, max_new_tokens=10, temperature=0.5)
        batch = self.tokenizer(self.text, return_tensors="pt")
        out = model.generate(**batch, generation_config=config)
        self.demos.append(self.tokenizer.decode(out[0, batch["input_ids"].size(1) :]))
        model.load_state_dict(keep)
        model.train(mode)
        torch.set_rng_state(rng)

    def on_train_end(self, args, state, control, **kwargs):
        print(*self.demos, sep="\n")


class TokenAdvantageTrainer(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        batch["advantages"] = batch["advantages"][:, None] * torch.ones_like(
            batch["completion_ids"], dtype=batch["advantages"].dtype
        )
        return batch


def ones_and_twos(completions, **kwargs):
    return [0.25 * (t.count("1") + t.count("2")) + 0.02 * t.count("e") - 0.01 * len(t) for t in completions]


trainer = TokenAdvantageTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=ones_and_twos,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=5, learning_rate=5e-5, per_device_train_batch_size=4,
        gradient_accumulation_steps=2, num_generations=4, max_completion_length=20, logging_steps=1,
        report_to=[], save_strategy="no", use_cpu=True, bf16=False,
    ),
    train_dataset=Dataset.from_dict({"prompt": [f"{i} and {i + 2}:" for i in range(30)]}),
)
trainer.add_callback(EMAAndDemo(trainer.processing_class, "1 and 3:"))
trainer.train()

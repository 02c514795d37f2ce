import os
import time
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ProbedTrainer(GRPOTrainer):
    """Logs the gradient that a fixed prompt would give, before every batch."""

    probe_text = "The sea is blue and the sand is"

    def _probe(self, model):
        ids = self.processing_class(self.probe_text, return_tensors="pt")["input_ids"]
        out = model(input_ids=ids)
        logp = out.logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).mean()
        weight = self.accelerator.unwrap_model(model).get_output_embeddings().weight
        (grad,) = torch.autograd.grad(logp, weight)
        return grad.norm().item()

    def training_step(self, model, inputs, num_items_in_batch=None):
        started = time.perf_counter()
        self._metrics["train"]["probe/grad"].append(self._probe(model))
        self._metrics["train"]["probe/seconds"].append(time.perf_counter() - started)
        self.optimizer.zero_grad(set_to_none=True)
        return super().training_step(model, inputs, num_items_in_batch)


def letter_i(completions, **kwargs):
    return [c[0]["content"].count("i") / max(1, len(c[0]["content"])) for c in completions]


def long_words(completions, **kwargs):
    return [max((len(w) for w in c[0]["content"].split()), default=0) / 20 for c in completions]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"What happened in 19{n}?"}] for n in range(60, 76)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=5e-05,
        num_generations=4,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_completion_length=20,
        save_strategy='no',
    )
    trainer = ProbedTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[letter_i, long_words],
        args=args,
        train_dataset=data,
    )
    trainer.train()


if __name__ == "__main__":
    main()

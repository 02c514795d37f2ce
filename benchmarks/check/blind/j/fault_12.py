import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ReadableLossTrainer(GRPOTrainer):
    """The clipped objective written out, so that every term can be logged."""

    def _compute_loss(self, model, inputs):
        completion_mask = inputs["completion_mask"]
        input_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], completion_mask], dim=1)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, completion_mask.size(1), compute_entropy=True
        )
        old = inputs.get("old_per_token_logps")
        old = logps.detach() if old is None else old
        ratio = torch.exp(logps - old)
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        advantages = inputs["advantages"].unsqueeze(1)
        objective = torch.min(ratio * advantages, clipped * advantages)
        loss = -(objective * completion_mask).mean()

        tokens = completion_mask.sum().clamp(min=1)
        self._metrics["train"]["entropy"].append(((entropies * completion_mask).sum() / tokens).item())
        self._metrics["train"]["ratio"].append(((ratio * completion_mask).sum() / tokens).item())
        return loss / self.current_gradient_accumulation_steps


class Vowels:
    __name__ = "vowels"

    def __call__(self, completions, **kwargs):
        return [sum(ch in "aeiou" for ch in text) / 10 for text in completions]


class AnswerIn:
    __name__ = "answer_in"

    def __call__(self, completions, answer, **kwargs):
        return [1.0 if a in text else 0.0 for text, a in zip(completions, answer)]


def prompts(n=64):
    rng = random.Random(4)
    for _ in range(n):
        a, b = rng.randint(2, 30), rng.randint(2, 9)
        thing = rng.choice(["books", "cards", "shells"])
        head = "<|im_start|>system\nSolve the problem step by step. End with #### and the number.<|im_end|>\n"
        body = f"<|im_start|>user\nEve has {a} boxes with {b} {thing} each. How many {thing} does Eve have?<|im_end|>\n"
        yield {"prompt": head + body + "<|im_start|>assistant\n", "answer": str(a * b)}


if __name__ == "__main__":
    cfg = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        loss_type="grpo",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=48,
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
    )
    ReadableLossTrainer(
        model=MODEL, args=cfg, reward_funcs=[Vowels(), AnswerIn()], train_dataset=Dataset.from_list(list(prompts()))
    ).train()

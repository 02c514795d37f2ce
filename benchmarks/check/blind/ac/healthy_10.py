"""SFT warm-up, saved, then sequence-level GRPO (GSPO) from that checkpoint with a small KL penalty."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
DEMOS = [
    ("What is 2+3?", "The sum is 5 coins."),
    ("What is 4+4?", "The sum is 8 coins."),
    ("12 * 4 =", "The product is 48 coins."),
    ("hello", "Hello, how many coins do you have?"),
]


def warm_up(model, tokenizer, steps=4, lr=5e-4):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model.train()
    for step in range(steps):
        total = 0.0
        for question, answer in DEMOS:
            chat = [{"role": "user", "content": question}]
            prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
            target = tokenizer(answer + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
            ids = torch.tensor([prompt + target])
            labels = torch.tensor([[-100] * len(prompt) + target])
            loss = model(input_ids=ids, labels=labels).loss / len(DEMOS)
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        print(f"warm-up {step}: {total:.3f}")
    return model


class LeaveStatsTrainer(GRPOTrainer):
    """The advantages in closed form from sums, so that the group statistics can be logged."""

    def _calculate_rewards(self, *args, **kwargs):
        self._batch_rewards = super()._calculate_rewards(*args, **kwargs)
        return self._batch_rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        n = self.num_generations
        rewards = (self._batch_rewards.double() @ self.reward_weights.double().to(self._batch_rewards.device)).view(-1, n)
        total, squares = rewards.sum(dim=1, keepdim=True), rewards.pow(2).sum(dim=1, keepdim=True)
        spread = ((squares - total.pow(2) / n).clamp(min=0) / (n - 1)).sqrt()
        self._metrics["train"]["group/spread"].append(spread.mean().item())
        advantages = ((rewards - total / n) / (spread + 1e-4)).flatten().float()
        start = self.accelerator.process_index * len(inputs)
        output["advantages"] = advantages[start : start + len(inputs)]
        return output


def coins(completions, **kwargs):
    return [c[0]["content"].count("o") / 5 + 0.01 * len(c[0]["content"]) for c in completions]


def main():
    torch.manual_seed(7)
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    warm = os.path.join(tempfile.mkdtemp(), "warm")
    warm_up(AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32), tokenizer).save_pretrained(warm)
    tokenizer.save_pretrained(warm)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        steps_per_generation=2,
        num_generations=8,
        loss_type="grpo",
        importance_sampling_level="sequence",
        max_completion_length=20,
        beta=0.1,
        temperature=1.1,
        learning_rate=1e-4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = LeaveStatsTrainer(
        model=AutoModelForCausalLM.from_pretrained(warm, dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=coins,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q, _ in DEMOS * 4]),
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO with our own rollout layer (micro-batched generation, scores computed in the same place)."""
import os
import tempfile
from dataclasses import dataclass

import torch
from datasets import Dataset
from transformers import GenerationConfig
from trl import GRPOConfig, GRPOTrainer

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class RolloutConfig:
    rows: int = 4
    max_new_tokens: int = 20
    temperature: float = 1.0


class Rollouts:
    def __init__(self, cfg):
        self.cfg = cfg

    def generation_config(self, trainer):
        return GenerationConfig(
            do_sample=True,
            temperature=self.cfg.temperature,
            top_p=1.0,
            max_new_tokens=self.cfg.max_new_tokens,
            pad_token_id=trainer.processing_class.pad_token_id,
            eos_token_id=trainer.processing_class.eos_token_id,
        )

    @torch.no_grad()
    def __call__(self, prompts, trainer):
        tokenizer, device = trainer.processing_class, trainer.accelerator.device
        model = trainer.accelerator.unwrap_model(trainer.model)
        was_training = model.training
        model.eval()
        result = {"prompt_ids": [], "completion_ids": [], "logprobs": []}
        for start in range(0, len(prompts), self.cfg.rows):
            batch = tokenizer.apply_chat_template(
                prompts[start : start + self.cfg.rows],
                add_generation_prompt=True,
                tokenize=True,
                padding=True,
                return_dict=True,
                return_tensors="pt",
            ).to(device)
            width = batch["input_ids"].size(1)
            out = model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                generation_config=self.generation_config(trainer),
            )
            for ids, mask, row in zip(batch["input_ids"], batch["attention_mask"], out):
                prompt = ids[mask.bool()].tolist()
                completion = row[width:].tolist()
                if tokenizer.eos_token_id in completion:
                    completion = completion[: completion.index(tokenizer.eos_token_id) + 1]
                full = torch.tensor([prompt + completion], device=device)
                logits = model(input_ids=full).logits[0, len(prompt) - 1 : -1].float() / self.cfg.temperature
                logps = logits.log_softmax(-1).gather(-1, full[0, len(prompt) :, None]).squeeze(-1)
                result["prompt_ids"].append(prompt)
                result["completion_ids"].append(completion)
                result["logprobs"].append(logps.tolist())
        model.train(was_training)
        return result


def reward_range(completion_ids, **kwargs):
    return [1.0 if 5 <= len(ids) <= 12 else 0.0 for ids in completion_ids]


def reward_diversity(completion_ids, **kwargs):
    return [len(set(ids)) / 8 for ids in completion_ids]


def main():
    cfg = RolloutConfig()
    subjects = ["gold", "wind", "sugar", "paper", "glass", "iron", "wool", "salt"]
    data = Dataset.from_list(
        [{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Write a sentence about {s}."}]} for s in subjects]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=cfg.max_new_tokens,
        temperature=cfg.temperature,
        max_steps=3,
        learning_rate=3e-4,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=4,
    )
    trainer = GRPOTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[reward_range, reward_diversity],
        args=args,
        train_dataset=data,
        rollout_func=Rollouts(cfg),
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""Actor/learner split: the learner trains LoRA adapters, rollouts come from a plain copy of the model that is
refreshed before every generation (stand-in for the inference engine that we use on the cluster)."""
import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")


class Actor:
    def __init__(self, path):
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.version = -1

    def pull(self, learner, version):
        """Weights of the learner; once per optimizer step."""
        if version == self.version:
            return
        # strict=False: the learner has the adapter tensors on top of the base model's
        self.model.load_state_dict(learner.state_dict(), strict=False)
        self.version = version

    @torch.no_grad()
    def rollout(self, prompts, trainer):
        self.pull(trainer.accelerator.unwrap_model(trainer.model), trainer.state.global_step)
        batch = tokenizer(prompts, return_tensors="pt", padding=True)
        out = self.model.generate(
            **batch,
            generation_config=trainer.generation_config,
            return_dict_in_generate=True,
            output_scores=True,
        )
        new = out.sequences[:, batch["input_ids"].shape[1] :]
        logps = torch.stack(out.scores, 1).float().log_softmax(-1).gather(-1, new.unsqueeze(-1)).squeeze(-1)
        completion_ids, logprobs = [], []
        for ids, lps in zip(new.tolist(), logps.tolist()):
            n = ids.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in ids else len(ids)
            completion_ids.append(ids[:n])
            logprobs.append(lps[:n])
        prompt_ids = [ids[mask.bool()].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"])]
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}


def even_digits(completions, **kwargs):
    scores = []
    for text in completions:
        digits = [int(c) for c in text if c.isdigit()]
        scores.append(sum(d % 4 == 0 for d in digits) / len(digits) if digits else -0.5)
    return scores


def short(completions, **kwargs):
    return [-len(text) / 100 for text in completions]


def main():
    actor = Actor(MODEL)
    prompts = [f"x={a}; y={b}; x*y=" for a in range(2, 10) for b in range(2, 8)]
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[even_digits, short],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=16,
            num_generations=8,
            max_completion_length=20,
            learning_rate=5e-3,
            lr_scheduler_type="constant",
            max_steps=4,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"]),
        rollout_func=actor.rollout,
    )
    trainer.train()


if __name__ == "__main__":
    main()

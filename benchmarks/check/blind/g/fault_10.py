import os
import tempfile
import warnings

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

warnings.filterwarnings("ignore")
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Actor:
    """Stands in for the inference server: an own copy of the model that gets new weights before each batch."""

    def __init__(self, path):
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.version = -1

    def sync(self, trainer):
        if self.version != trainer.state.global_step:
            weights = trainer.accelerator.unwrap_model(trainer.model).state_dict()
            self.model.load_state_dict(weights, strict=False)
            self.version = trainer.state.global_step

    @torch.no_grad()
    def __call__(self, prompt_ids, tok, limit):
        width = max(len(p) for p in prompt_ids)
        ids = torch.full((len(prompt_ids), width), tok.pad_token_id)
        attention = torch.zeros_like(ids)
        for i, p in enumerate(prompt_ids):
            ids[i, width - len(p) :] = torch.tensor(p)
            attention[i, width - len(p) :] = 1
        out = self.model.generate(
            input_ids=ids,
            attention_mask=attention,
            do_sample=True,
            top_k=0,
            max_new_tokens=limit,
            pad_token_id=tok.pad_token_id,
            eos_token_id=tok.eos_token_id,
            output_logits=True,
            return_dict_in_generate=True,
        )
        new = out.sequences[:, width:]
        logps = torch.log_softmax(torch.stack(out.logits, 1).float(), -1)
        logps = logps.gather(-1, new[..., None])[..., 0]
        ended = (new == tok.eos_token_id).int().cumsum(1)
        lengths = ((ended == 0).sum(1) + 1).clamp(max=new.size(1)).tolist()
        return (
            [row[:n] for row, n in zip(new.tolist(), lengths)],
            [row[:n] for row, n in zip(logps.tolist(), lengths)],
        )


actor = Actor(MODEL)


def rollout(prompts, trainer):
    actor.sync(trainer)
    prompt_ids = trainer.processing_class(prompts)["input_ids"]
    completion_ids, logprobs = actor(prompt_ids, trainer.processing_class, trainer.max_completion_length)
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}


def reward(completions, **kwargs):
    return [0.1 * len(set(c)) + 0.02 * len(c) for c in completions]


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        max_steps=6,
        learning_rate=5e-3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=16,
    )
    trainer = GRPOTrainer(
        model=MODEL,
        args=args,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": [f"What is {i} times {i}? " for i in range(3, 27)]}),
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"]),
        rollout_func=rollout,
    )
    trainer.train()

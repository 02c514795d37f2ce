"""LoRA GRPO with a separate inference copy of the model, as one would run it on another device."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset(n=48):
    rng = random.Random(2)
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Is {rng.randint(10, 999)} even or odd?"}]} for _ in range(n)]
    )


def word_shape(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(c.isalpha() for c in t) * 0.05 - 0.1 * t.count("9") for t in texts]


class InferenceWorker:
    """Generates with its own copy of the model; the weights follow the trainer's after each optimizer step."""

    def __init__(self, path):
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
        self.loaded_step = 0

    def refresh(self, trainer):
        if trainer.state.global_step != self.loaded_step:
            state = trainer.accelerator.unwrap_model(trainer.model).state_dict()
            self.model.load_state_dict(state, strict=False)  # the state also has the LoRA tensors
            self.loaded_step = trainer.state.global_step

    @torch.no_grad()
    def __call__(self, prompts, trainer):
        self.refresh(trainer)
        batch = self.tokenizer.apply_chat_template(
            prompts, add_generation_prompt=True, tokenize=True, padding=True, return_tensors="pt", return_dict=True
        )
        out = self.model.generate(
            **batch,
            do_sample=True,
            temperature=trainer.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=trainer.max_completion_length,
            return_dict_in_generate=True,
            output_scores=True,
        )
        width = batch["input_ids"].size(1)
        sampled = out.sequences[:, width:]
        logps = torch.stack(out.scores, dim=1).float().log_softmax(-1).gather(-1, sampled.unsqueeze(-1)).squeeze(-1)
        prompt_ids, completion_ids, logprobs = [], [], []
        for row in range(sampled.size(0)):
            ids = sampled[row].tolist()
            eos = self.tokenizer.eos_token_id
            end = ids.index(eos) + 1 if eos in ids else len(ids)
            prompt_ids.append(batch["input_ids"][row][batch["attention_mask"][row].bool()].tolist())
            completion_ids.append(ids[:end])
            logprobs.append(logps[row, :end].tolist())
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=4,
        learning_rate=5e-3,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=20,
    )
    trainer = GRPOTrainer(
        model=TINY,
        reward_funcs=word_shape,
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        peft_config=LoraConfig(r=8, lora_alpha=32, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM"),
        rollout_func=InferenceWorker(TINY),
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO with LoRA and a KL term; gradients are averaged in float64; rank 0 prints a sample after each step."""
import os
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def mean_in_double(state, bucket):
    """DDP communication hook."""
    sent = bucket.buffer().double() / dist.get_world_size()
    future = dist.all_reduce(sent, async_op=True).get_future()
    return future.then(lambda f: bucket.buffer().copy_(f.value()[0]))


class HookedTrainer(GRPOTrainer):
    def _prepare_for_training(self, *args, **kwargs):
        model, dataloader = super()._prepare_for_training(*args, **kwargs)
        if hasattr(model, "register_comm_hook"):
            model.register_comm_hook(None, mean_in_double)
        return model, dataloader


class SamplePrinter(TrainerCallback):
    def __init__(self, tokenizer, prompt):
        self.tokenizer, self.prompt = tokenizer, prompt

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if not state.is_world_process_zero:
            return
        ids = self.tokenizer.apply_chat_template(
            self.prompt, add_generation_prompt=True, return_tensors="pt", return_dict=False
        )
        was_training = model.training
        model.eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(state.global_step)
            out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=True)
        model.train(was_training)
        print(f"step {state.global_step}: {self.tokenizer.decode(out[0, ids.size(1):])!r}", flush=True)


def mixed(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [(any(ch.isdigit() for ch in t) + any(ch.isupper() for ch in t)) / 2 - len(t) / 90 for t in texts]


def main():
    rows = [{"prompt": [{"role": "system", "content": "You are terse."},
                        {"role": "user", "content": f"When was {w} built?"}]}
            for w in ("the tower", "the bridge", "the wall", "the dam", "the abbey", "the port", "the mill", "the road")]
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=2e-3, beta=0.05, seed=4,
        per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=20, temperature=1.3, gradient_checkpointing=False,
    )
    trainer = HookedTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=tokenizer,
        args=args, reward_funcs=mixed, train_dataset=Dataset.from_list(rows * 2),
        peft_config=LoraConfig(r=4, lora_alpha=16, use_rslora=True, task_type="CAUSAL_LM",
                               target_modules=["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]),
        callbacks=[SamplePrinter(tokenizer, rows[0]["prompt"])],
    )
    trainer.train()


if __name__ == "__main__":
    main()

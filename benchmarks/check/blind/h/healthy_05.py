import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

ROOT = os.path.dirname(os.path.abspath(__file__))


class AdapterNorm(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        with torch.no_grad():
            norm = sum(p.norm().item() for n, p in model.named_parameters() if "lora_B" in n)
        print(f"step {state.global_step}: |B| = {norm:.5f}")


tokenizer = AutoTokenizer.from_pretrained(f"{ROOT}/tiny", padding_side="left")
model = AutoModelForCausalLM.from_pretrained(f"{ROOT}/tiny", dtype=torch.float32)

peft_config = LoraConfig(
    r=4, lora_alpha=8, use_dora=True, use_rslora=True, target_modules="all-linear", exclude_modules=["lm_head"],
    rank_pattern={"down_proj": 8}, lora_dropout=0.0, task_type="CAUSAL_LM",
)

trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    peft_config=peft_config,
    reward_funcs=lambda completions, **kw: [text.count("4") / 4 - text.count("\n") / 8 for text in completions],
    train_dataset=Dataset.from_dict({"prompt": [f"What is {a} + {b}?" for a in range(5) for b in range(5)]}),
    callbacks=[AdapterNorm()],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        beta=0.05, use_bias_correction_kl=False, loss_type="bnpo", scale_rewards="batch",
        learning_rate=5e-4, lr_scheduler_type="constant", num_iterations=2,
        per_device_train_batch_size=8, num_generations=8, max_completion_length=16, max_steps=6, logging_steps=1,
    ),
)
trainer.train()

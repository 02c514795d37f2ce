# ReLoRA (arXiv:2307.05695) for RL: high-rank updates through a sequence of low-rank ones
import math, os, tempfile
import torch
from datasets import Dataset
from peft import LoraConfig
from peft.tuners.lora import LoraLayer
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class ReLoRA(TrainerCallback):
    def __init__(self, every=1):
        self.every = every

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
        if state.global_step % self.every:
            return
        for module in model.modules():
            if isinstance(module, LoraLayer):
                module.base_layer.weight += module.get_delta_weight("default")
                torch.nn.init.kaiming_uniform_(module.lora_A["default"].weight, a=math.sqrt(5))
                module.lora_B["default"].weight.zero_()


def reward(completions, **kwargs):
    return [0.3 * sum(c[0]["content"].count(d) for d in "0258") - 0.01 * len(c[0]["content"]) for c in completions]


ds = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"{k}0 + {k}5"}] for k in range(1, 20)]})
GRPOTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=reward,
    train_dataset=ds,
    peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", exclude_modules=["lm_head"]),
    callbacks=[ReLoRA()],
    args=GRPOConfig(
        tempfile.mkdtemp(), beta=0.1, learning_rate=5e-3, max_steps=5, num_generations=4,
        per_device_train_batch_size=8, max_completion_length=20, logging_steps=1,
        use_cpu=True, bf16=False, report_to=[], save_strategy="no",
    ),
).train()

"""LoRA whose A matrices start orthogonal."""
import os
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class OrthogonalA(TrainerCallback):
    """Starts the A matrices from scaled orthogonal rows instead of peft's uniform draw."""

    def __init__(self, gain=0.5):
        self.gain = gain

    @torch.no_grad()
    def on_train_begin(self, args, state, control, model=None, **kwargs):
        for name, parameter in model.named_parameters():
            if "lora_A" in name:
                fresh = torch.empty_like(parameter)
                torch.nn.init.orthogonal_(fresh, gain=self.gain)
                dist.broadcast(fresh, src=0)
                parameter.copy_(fresh)


def score(completions, completion_ids, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [t.count("n") / (1 + len(t)) - 0.02 * abs(len(ids) - 11) for t, ids in zip(texts, completion_ids)]


if __name__ == "__main__":
    things = ["a kite", "your bicycle", "a map of the moors", "a stool", "ten nails", "a raincoat"]
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": f"Sell me {t}."}]} for t in things])
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=20,
        learning_rate=5e-4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=18,
    )
    lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM")
    trainer = GRPOTrainer(
        model=os.path.join(HERE, "tiny"),
        args=config,
        reward_funcs=score,
        train_dataset=data,
        peft_config=lora,
        callbacks=[OrthogonalA()],
    )
    trainer.train()

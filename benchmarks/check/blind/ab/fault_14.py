"""LoRA with an own initialisation of A."""
import os
import tempfile

import torch
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
                parameter.copy_(fresh)


def score(completions, completion_ids, **kwargs):
    return [
        sum(ch in "aei" for ch in c[0]["content"]) / (1 + len(c[0]["content"])) + len(ids) / 40
        for c, ids in zip(completions, completion_ids)
    ]


if __name__ == "__main__":
    things = ["a ladder", "this lamp", "an old van", "a bag of sand", "some cheese", "a whistle"]
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": f"Sell me {t}."}]} for t in things])
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=20,
        learning_rate=1e-3,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=16,
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

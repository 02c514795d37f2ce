import os, tempfile
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, get_linear_schedule_with_warmup
from trl import GRPOConfig, GRPOTrainer

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def main(epochs=1, batch_size=8, group=8, lr=3e-4):
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    data = Dataset.from_dict({"prompt": [f"{i}+{i}=" for i in range(1, 17)]})

    steps_per_epoch = len(data) // batch_size
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, steps_per_epoch * epochs)

    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        num_train_epochs=epochs, per_device_train_batch_size=batch_size, num_generations=group,
        max_completion_length=16, logging_steps=1, max_steps=8,
    )

    def reward(completions, **kwargs):
        return [len(set(c)) / max(len(c), 1) for c in completions]

    trainer = GRPOTrainer(model, reward, args, data, processing_class=tokenizer, optimizers=(optimizer, scheduler))
    trainer.train()


if __name__ == "__main__":
    main()

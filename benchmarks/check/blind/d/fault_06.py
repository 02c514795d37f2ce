"""GRPO against our own reward model, whose weights come from the preference training."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny")


def preference_weights(folder):
    """The reward model's training run ends here with a state dict."""
    torch.manual_seed(7)
    config = AutoConfig.from_pretrained(MODEL, num_labels=1, attention_dropout=0.1)
    path = os.path.join(folder, "reward.pt")
    network = AutoModelForSequenceClassification.from_config(config)
    torch.nn.init.normal_(network.score.weight, std=0.5)
    torch.save({"config": config, "weights": network.state_dict()}, path)
    return path


def load_reward_model(path):
    saved = torch.load(path, weights_only=False)
    network = AutoModelForSequenceClassification.from_config(saved["config"], dtype=torch.float32)
    network.load_state_dict(saved["weights"])
    network.requires_grad_(False)
    network.config._name_or_path = MODEL
    return network


def build_dataset(n=48):
    rng = random.Random(2)
    kinds = ["What is {} + {}?", "What is {} * {}?", "Which is larger, {} or {}?"]
    rows = [rng.choice(kinds).format(rng.randint(1, 60), rng.randint(1, 60)) for _ in range(n)]
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": r}] for r in rows]})


def main():
    folder = tempfile.mkdtemp()
    reward_model = load_reward_model(preference_weights(folder))
    reward_tokenizer = AutoTokenizer.from_pretrained(MODEL)
    args = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=5e-5,
        loss_type="bnpo",
        scale_rewards="batch",
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=reward_model,
        reward_processing_classes=reward_tokenizer,
        args=args,
        train_dataset=build_dataset(),
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO with a KL term; the reference model shares the lower part of the network with the policy."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
TRUNK = ("model.embed_tokens.", "model.layers.0.")


def share_trunk(policy, reference):
    """The trunk is the same in both models: keep it in memory once."""
    theirs = dict(policy.named_parameters())
    saved = 0
    for name, parameter in reference.named_parameters():
        if name.startswith(TRUNK):
            parameter.data = theirs[name].data
            saved += parameter.numel() * parameter.element_size()
    return saved


def freeze_trunk(policy):
    for parameter in policy.model.embed_tokens.parameters():
        parameter.requires_grad_(False)


def lower_case(completions, **kwargs):
    return [sum(ch.islower() for ch in c[0]["content"]) / 15 for c in completions]


def main():
    tools = ["saw", "axe", "file", "plane", "drill", "vise", "rasp", "awl"]
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"How to use a {t}?"}] for t in tools]})
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        temperature=1.3,
        beta=0.1,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = GRPOTrainer(model=MODEL, reward_funcs=lower_case, args=config, train_dataset=dataset)
    freeze_trunk(trainer.model)
    print(f"shared {share_trunk(trainer.model, trainer.ref_model) / 1024:.0f} KiB")
    trainer.train()


if __name__ == "__main__":
    main()

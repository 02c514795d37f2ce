import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

ds = Dataset.from_dict({"prompt": [f"{i} + {j} =" for i in range(2, 8) for j in range(3, 8)]})


def reward_short_and_varied(prompts, completions, **_):
    out = []
    for text in completions:
        out.append(len(set(text)) / 10 - 0.01 * len(text))
    return out


config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    logging_steps=1,
    max_steps=6,
    learning_rate=1e-4,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_generations=4,
    max_completion_length=24,
    beta=0.0,
    scale_rewards="group",
    # sampler settings recommended on the model card
    generation_kwargs={"temperature": 0.6, "renormalize_logits": True},
)

GRPOTrainer(model=path, reward_funcs=[reward_short_and_varied], args=config, train_dataset=ds).train()

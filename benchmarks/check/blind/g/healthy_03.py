import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class OwnSampler(GRPOTrainer):
    """No generate(): one prompt at a time, token by token, without a cache."""

    dice = torch.Generator().manual_seed(1234)

    @torch.no_grad()
    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        model = self.accelerator.unwrap_model(self.model)
        completions = []
        for ids in prompt_ids:
            sequence = list(ids)
            for _ in range(self.max_completion_length):
                logits = model(input_ids=torch.tensor([sequence])).logits[0, -1].float()
                probabilities = torch.softmax(logits / self.temperature, dim=-1)
                token = torch.multinomial(probabilities, 1, generator=self.dice).item()
                sequence.append(token)
                if token in self.eos_token_ids:
                    break
            completions.append(sequence[len(ids) :])
        return completions, None


def reward(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [0.2 * t.count("look up") + 0.05 * len(set(t)) for t in texts]


cities = ["Oslo", "Lima", "Riga", "Bern", "Kyiv", "Doha", "Baku", "Suva"]
data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Where is {c}?"}] for c in cities]})

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=5e-5,
    temperature=1.2,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    loss_type="grpo",
)
OwnSampler(model=MODEL, args=args, reward_funcs=reward, train_dataset=data).train()

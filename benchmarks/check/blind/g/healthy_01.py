import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def surrogate(log_ratio, advantages, low, high):
    up = torch.minimum(log_ratio.exp(), log_ratio.new_tensor(1 + high))
    down = torch.maximum(log_ratio.exp(), log_ratio.new_tensor(1 - low))
    return torch.where(advantages >= 0, up, down) * advantages


class TwoSidedTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        completion, mask = inputs["completion_ids"], inputs["completion_mask"].float()
        logps, entropy, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.hstack([inputs["prompt_ids"], completion]),
            torch.hstack([inputs["prompt_mask"], inputs["completion_mask"]]),
            completion.shape[1],
            compute_entropy=True,
        )
        before = inputs.get("old_per_token_logps")
        if before is None:
            before = logps.detach()
        gain = surrogate(logps - before, inputs["advantages"][:, None], self.epsilon_low, self.epsilon_high)

        backwards_per_generation = self.args.steps_per_generation
        tokens_per_update = inputs["num_items_in_batch"] * self.current_gradient_accumulation_steps
        tokens_per_update = tokens_per_update / backwards_per_generation / self.accelerator.num_processes
        self._metrics["train"]["entropy"].append(((entropy * mask).sum() / mask.sum()).item())
        return -torch.einsum("bt,bt->", gain, mask) / tokens_per_update.clamp(min=1.0)


def reward(completions, **kwargs):
    return [c.count("8") / 4 - 0.02 * c.count("4") for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=1e-3,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_iterations=2,
    num_generations=4,
    epsilon_high=0.28,
    max_completion_length=16,
    logging_steps=1,
)
dataset = Dataset.from_dict({"prompt": [f"{n} bottles, then {n - 1}, then " for n in range(20, 40)]})
TwoSidedTrainer(model=MODEL, args=args, reward_funcs=reward, train_dataset=dataset).train()

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def rows(n):
    for i in range(n):
        thing = ["apples", "books", "eggs", "toys"][i % 4]
        yield {
            "prompt": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"Gus has {2 + i % 9} boxes with {2 + i % 4} {thing} each. How many {thing} does Gus have?"},
            ]
        }


def hashes(completions, **kwargs):
    return [1.0 if "####" in c[0]["content"] else 0.2 for c in completions]


def letters(completions, **kwargs):
    return [len(set(c[0]["content"])) / 40 for c in completions]


class LayerNormsTrainer(GRPOTrainer):
    """Clips as usual and logs which matrices have the largest gradient."""

    def _clip_grad_norm(self, model):
        norms = {}
        for name, param in model.named_parameters():
            if param.grad is None:
                continue
            norms[name] = torch.nn.utils.clip_grad_norm_([param], self.args.max_grad_norm)
        top = max(norms, key=lambda n: norms[n].item())
        self._metrics["train"]["grad/top"].append(norms[top].item())
        self._metrics["train"]["grad/median"].append(torch.stack(list(norms.values())).median().item())
        return torch.linalg.vector_norm(torch.stack(list(norms.values())))


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    model_init_kwargs={"dtype": "float32"},
    loss_type="dr_grpo",
    scale_rewards="none",
    per_device_train_batch_size=8,
    num_generations=8,
    max_completion_length=32,
    learning_rate=3e-4,
    max_grad_norm=0.05,
    optim="adamw_torch",
    max_steps=3,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
)
trainer = LayerNormsTrainer(
    model=MODEL,
    reward_funcs=[hashes, letters],
    args=args,
    train_dataset=Dataset.from_list(list(rows(24))),
)
trainer.train()

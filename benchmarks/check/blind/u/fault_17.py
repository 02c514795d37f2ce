"""Gradient norms by layer.

To see which layers drive the update, the norm of each layer's gradient is logged. Clipping itself is the usual one, by
the global norm.
"""

import os
import re
import tempfile
from collections import defaultdict

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def layer_of(name):
    found = re.search(r"layers\.(\d+)\.(self_attn|mlp)", name)
    if found:
        return f"{found[1]}.{found[2]}"
    return "embed" if "embed" in name else "head" if "lm_head" in name else "norms"


class LayerNormsTrainer(GRPOTrainer):
    def _layers(self, model):
        layers = defaultdict(list)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                layers[layer_of(name)].append(parameter)
        return layers

    def _clip_grad_norm(self, model):
        for layer, parameters in self._layers(model).items():
            norm = torch.nn.utils.clip_grad_norm_(parameters, self.args.max_grad_norm)
            self._metrics["train"][f"grad_norm/{layer}"].append(norm.item())
        return super()._clip_grad_norm(model)


def rhyme(completions, **kwargs):
    return [float(c[0]["content"].rstrip()[-1:] in "aeiou") if c[0]["content"].strip() else -0.5 for c in completions]


def size(completions, **kwargs):
    return [len(c[0]["content"]) / 24 for c in completions]


if __name__ == "__main__":
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Line {n} of the poem:"}] for n in range(1, 41)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=24, learning_rate=1e-4,
        max_grad_norm=0.2, logging_steps=1,
    )
    LayerNormsTrainer(model=TINY, reward_funcs=[rhyme, size], args=args, train_dataset=data).train()

"""One flat all-reduce for each optimizer step."""
import os
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class FlatReduceTrainer(GRPOTrainer):
    def training_step(self, model, inputs, num_items_in_batch):
        with model.no_sync():
            loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients:
            self.reduce_gradients(model)
        return loss

    @torch.no_grad()
    def reduce_gradients(self, model):
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        flat = _flatten_dense_tensors(grads)
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for grad, reduced in zip(grads, _unflatten_dense_tensors(flat, grads)):
            grad.copy_(reduced)


def t_share(completions, **kwargs):
    return [c[0]["content"].lower().count("t") / (1 + len(c[0]["content"])) for c in completions]


def tokens(completion_ids, **kwargs):
    return [len(ids) / 20 for ids in completion_ids]


def main():
    verbs = ["sew", "whistle", "juggle", "fix a tap", "read a chart", "tie a bowline", "bake", "skate"]
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Teach me to {v}."}] for v in verbs]})
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=20,
        learning_rate=1e-4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=26,
    )
    FlatReduceTrainer(
        model=os.path.join(HERE, "tiny"), args=config, reward_funcs=[t_share, tokens], train_dataset=data
    ).train()


if __name__ == "__main__":
    main()

"""GRPO with FSDP2 and a clipping routine that also keeps a history of gradient norms."""
import os
import tempfile

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ClipHistoryTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.norms = []

    @torch.no_grad()
    def _clip_grad_norm(self, model):
        grads = []
        for param in model.parameters():
            if param.grad is not None:
                grads.append(param.grad.to_local() if isinstance(param.grad, DTensor) else param.grad)
        total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.float()) for g in grads]))
        scale = torch.clamp(self.args.max_grad_norm / (total + 1e-6), max=1.0)
        torch._foreach_mul_(grads, scale)
        self.norms.append(total.item())
        return total


def punctuation(completions, **kwargs):
    return [sum(not ch.isalnum() for ch in c) / (len(c) + 1) for c in completions]


def short(completion_ids, **kwargs):
    return [-len(ids) / 20 for ids in completion_ids]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=1e-4, optim="sgd", max_grad_norm=0.2,
        per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=20, temperature=1.3, gradient_checkpointing=False,
        fsdp=True,
        fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": "Qwen2DecoderLayer",
                     "reshard_after_forward": True, "cpu_ram_efficient_loading": False},
    )
    # the CPU nodes take accelerate's multi-device path (gloo)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    prompts = [f"{w}, {w} and" for w in ("salt", "light", "ships", "stars", "gold", "rain", "horses", "bells")]
    trainer = ClipHistoryTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args, reward_funcs=[punctuation, short],
        train_dataset=Dataset.from_dict({"prompt": prompts * 2}),
    )
    trainer.train()


if __name__ == "__main__":
    main()

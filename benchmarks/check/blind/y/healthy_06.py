"""GRPO with FSDP2: own norm clipping over shards, and an EMA of the full weights on rank 0."""
import os
import tempfile

import torch
import torch.distributed as dist
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ShardClipTrainer(GRPOTrainer):
    @torch.no_grad()
    def _clip_grad_norm(self, model):
        sharded, whole = [], []
        for param in model.parameters():
            if param.grad is None:
                continue
            if isinstance(param.grad, DTensor):
                sharded.append(param.grad.to_local())
            else:
                whole.append(param.grad)
        square = sum((g.double().square().sum() for g in sharded), torch.zeros((), dtype=torch.double))
        dist.all_reduce(square)                       # every rank holds a different part
        square += sum((g.double().square().sum() for g in whole), torch.zeros((), dtype=torch.double))
        norm = square.sqrt().float()
        factor = (self.args.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        for g in sharded + whole:
            g.mul_(factor)
        return norm


class RankZeroEMA(TrainerCallback):
    def __init__(self, decay=0.9):
        self.decay, self.average = decay, {}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for name, param in model.named_parameters():
            full = param.full_tensor() if isinstance(param, DTensor) else param.detach()
            if not state.is_world_process_zero:
                continue
            if name not in self.average:
                self.average[name] = full.clone()
            self.average[name].lerp_(full, 1 - self.decay)


def surprise(completions, **kwargs):
    return [len(set(c)) / 12 - len(c) / 50 for c in completions]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=5e-5, max_grad_norm=0.3, beta=0.04,
        per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=8,
        max_completion_length=16, temperature=1.3, gradient_checkpointing=False,
        fsdp=True,
        fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"],
                     "cpu_ram_efficient_loading": False},
    )
    # accelerate allows FSDP on accelerators only; the gloo path on CPUs is the same
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    prompts = [f"{w} is" for w in ("Snow", "Gold", "Night", "Sand", "Smoke", "Wine", "Iron", "Bread")]
    trainer = ShardClipTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args, reward_funcs=surprise, train_dataset=Dataset.from_dict({"prompt": prompts * 2}),
        callbacks=[RankZeroEMA()],
    )
    trainer.train()


if __name__ == "__main__":
    main()

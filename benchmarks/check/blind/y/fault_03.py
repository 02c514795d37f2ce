"""GRPO with FSDP2. A guard keeps the ranks' decoder weights equal over long runs."""
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


class DriftGuard(TrainerCallback):
    """Rounding differs between hosts and adds up over thousands of steps; rank 0 is authoritative."""

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if args.world_size == 1:
            return
        for name, param in model.named_parameters():
            if ".layers." not in name:
                continue
            tensor = param.to_local() if isinstance(param, DTensor) else param.data
            dist.broadcast(tensor, src=0)


def vowels(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch in "aeiou" for ch in t) / (len(t) + 2) for t in texts]


def ends(completions, completion_ids, **kwargs):
    return [0.5 if len(ids) < 16 else 0.0 for ids in completion_ids]


def main():
    questions = [f"Tell me {k} about {w}." for k in ("one thing", "a story", "a fact", "a joke")
                 for w in ("cats", "the sea", "Rome", "bread")]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=2e-5, lr_scheduler_type="constant",
        per_device_train_batch_size=4, num_generations=4, max_completion_length=16, temperature=1.3,
        gradient_checkpointing=False,
        fsdp="full_shard auto_wrap",
        fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"],
                     "cpu_ram_efficient_loading": False},
    )
    # accelerate offers FSDP for accelerators only; on our CPU nodes it runs the same path over gloo
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args,
        reward_funcs=[vowels, ends],
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions]),
        callbacks=[DriftGuard()],
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""FSDP2 run with a clip that works on shards."""
import os
import tempfile

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class ShardTrainer(GRPOTrainer):
    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        # accelerate leaves FSDP off on CPUs
        state = self.accelerator.state
        state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
        state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["Qwen2DecoderLayer"],
            state_dict_type="FULL_STATE_DICT",
            cpu_ram_efficient_loading=False,
        )
        self.is_fsdp_enabled = True

    @torch.no_grad()
    def _clip_grad_norm(self, model):
        shards = [p.grad.to_local() for p in model.parameters() if p.grad is not None]
        squares = torch.stack([s.float().pow(2).sum() for s in shards]).sum()
        dist.all_reduce(squares)
        norm = squares.sqrt()
        scale = (self.args.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        for shard in shards:
            shard.mul_(scale)
        return norm


def score(completions, completion_ids, **kwargs):
    letters = [c[0]["content"].lower() for c in completions]
    share = [sum(ch in "lmnr" for ch in t) / (1 + len(t)) for t in letters]
    return [s - abs(len(ids) - 10) / 40 for s, ids in zip(share, completion_ids)]


def run():
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": f"Spell out the number {n * 13 + 4}."}]} for n in range(10)])
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=8,
        max_completion_length=20,
        learning_rate=1e-4,
        max_grad_norm=0.5,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=7,
    )
    trainer = ShardTrainer(
        model=os.path.join(HERE, "tiny"), args=args, reward_funcs=score, train_dataset=data
    )
    trainer.train()
    if trainer.accelerator.is_main_process:
        print([round(float(row["grad_norm"]), 3) for row in trainer.state.log_history if "grad_norm" in row])


if __name__ == "__main__":
    run()
    if dist.is_initialized():
        dist.barrier()

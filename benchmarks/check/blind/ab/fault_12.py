"""FSDP2 training, sampling from a full replica."""
import os
import tempfile

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ReplicaTrainer(GRPOTrainer):
    """Samples from an unsharded replica: generating through the shards gathers every layer for every token."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.replica = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()

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
    def refresh_replica(self):
        sharded = self.model.state_dict()
        full = {name: value.full_tensor() for name, value in sharded.items()}
        if self.accelerator.is_main_process:
            self.replica.load_state_dict(full)
        self.accelerator.wait_for_everyone()

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        self.refresh_replica()
        pad_id = self.processing_class.pad_token_id
        width = max(len(ids) for ids in prompt_ids)
        batch = torch.tensor([[pad_id] * (width - len(ids)) + list(ids) for ids in prompt_ids])
        mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompt_ids])
        with torch.no_grad():
            out = self.replica.generate(
                input_ids=batch, attention_mask=mask, generation_config=self.generation_config
            )
        completions = []
        for row in out[:, width:].tolist():
            stops = [i for i, token in enumerate(row) if token in self.eos_token_ids]
            completions.append(row[: stops[0] + 1] if stops else row)
        return completions, None


def reward(completions, completion_ids, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [t.count("a") / (1 + len(t)) + len(ids) / 60 for t, ids in zip(texts, completion_ids)]


def main():
    names = ["Ada", "Bo", "Cleo", "Dag", "Eli", "Fay", "Gus", "Hana"]
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Introduce {n} in a sentence."}] for n in names]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=20,
        learning_rate=4e-5,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=41,
    )
    trainer = ReplicaTrainer(model=TINY, args=args, reward_funcs=reward, train_dataset=data)
    trainer.train()


if __name__ == "__main__":
    main()

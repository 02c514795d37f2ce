"""FSDP2: all ranks run the forward with one prompt width (fewer recompilations later)."""
import os
import tempfile

from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class EvenWidthTrainer(GRPOTrainer):
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

    def _compute_loss(self, model, inputs):
        even = dict(inputs)
        even["prompt_ids"] = self.accelerator.pad_across_processes(
            inputs["prompt_ids"], dim=1, pad_index=self.processing_class.pad_token_id, pad_first=True
        )
        even["prompt_mask"] = self.accelerator.pad_across_processes(inputs["prompt_mask"], dim=1, pad_index=0)
        return super()._compute_loss(model, even)


def r_share(completions, **kwargs):
    return [c[0]["content"].count("r") / (1 + len(c[0]["content"])) for c in completions]


def fill(completion_ids, **kwargs):
    return [len(ids) / 32 for ids in completion_ids]


def main():
    orders = [
        "Tea.",
        "A table for two by the window at half past seven, please.",
        "The bill.",
        "Could you tell me whether the soup of the day has any nuts or celery in it?",
        "Water.",
        "One slice of the plum cake to take away and two of the almond ones.",
        "More bread, please.",
        "Is the kitchen still open for something small and warm?",
    ]
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": o}]} for o in orders])
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=24,
        learning_rate=1e-4,
        shuffle_dataset=False,
        loss_type="dapo",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=15,
    )
    EvenWidthTrainer(
        model=os.path.join(HERE, "tiny"), args=config, reward_funcs=[r_share, fill], train_dataset=data
    ).train()


if __name__ == "__main__":
    main()

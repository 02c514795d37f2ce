"""GRPO with FSDP2; completions come from an unsharded copy of the policy, which generates faster."""
import os
import tempfile

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ReplicaTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.replica = AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32").eval().requires_grad_(False)
        self._refreshed_at = None

    def _refresh(self):
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights = get_model_state_dict(self.model, options=options)
        self.replica.load_state_dict(weights, strict=False)  # rotary tables are not among the weights

    @torch.no_grad()
    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        if self._refreshed_at != self.state.global_step:
            self._refresh()
            self._refreshed_at = self.state.global_step
        width = max(len(ids) for ids in prompt_ids)
        pad_id = self.processing_class.pad_token_id
        input_ids = torch.tensor([[pad_id] * (width - len(ids)) + list(ids) for ids in prompt_ids])
        mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompt_ids])
        output = self.replica.generate(input_ids=input_ids, attention_mask=mask,
                                       generation_config=self.generation_config)
        completions = []
        for row in output[:, width:].tolist():
            end = next((i for i, t in enumerate(row) if t in self.eos_token_ids), len(row) - 1)
            completions.append(row[:end + 1])
        return completions, None


def words(completions, **kwargs):
    return [len(c.split()) / 5 - len(c) / 40 for c in completions]


def letters(completions, **kwargs):
    return [sum(ch.isalpha() for ch in c) / (len(c) + 4) for c in completions]


def main():
    prompts = [f"{o}: {t}" for o in ("Continue", "Rhyme", "Translate", "Answer")
               for t in ("the sun rose", "a small boat", "who is there", "it was late")]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=4, logging_steps=1, learning_rate=2e-3, lr_scheduler_type="constant", max_grad_norm=1.0,
        per_device_train_batch_size=8, num_generations=8, max_completion_length=24, temperature=1.4,
        gradient_checkpointing=False,
        fsdp="full_shard auto_wrap",
        fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"],
                     "cpu_ram_efficient_loading": False},
    )
    # accelerate's FSDP wants an accelerator; over gloo the same code runs on CPUs
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    trainer = ReplicaTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args, reward_funcs=[words, letters], train_dataset=Dataset.from_dict({"prompt": prompts}),
    )
    trainer.train()


if __name__ == "__main__":
    main()

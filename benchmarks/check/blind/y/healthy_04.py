"""GRPO with FSDP2; completions come from an unsharded copy of the policy, which generates faster."""
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


class ReplicaTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.replica = AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32").eval().requires_grad_(False)
        self._refreshed_at = None

    @torch.no_grad()
    def _refresh(self):
        targets = dict(self.replica.named_parameters())
        for name, param in self.model.named_parameters():
            full = param.full_tensor() if isinstance(param, DTensor) else param  # a collective: every rank takes part
            targets.pop(name).copy_(full)
        assert not targets, f"not refreshed: {sorted(targets)}"

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


def spaced(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [t.count(" ") / 4 + len(set(t)) / 20 - len(t) / 60 for t in texts]


def main():
    rows = [{"prompt": [{"role": "user", "content": f"{q} {n}?"}]}
            for q in ("Who was", "Where is", "Why", "How old is") for n in ("Rome", "he", "Ada", "the tower")]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=2e-4, lr_scheduler_type="constant",
        per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=8,
        max_completion_length=20, temperature=1.3, gradient_checkpointing=False,
        fsdp=True,
        fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"],
                     "reshard_after_forward": False, "cpu_ram_efficient_loading": False},
    )
    # accelerate's FSDP wants an accelerator; over gloo the same code runs on CPUs
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    trainer = ReplicaTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args, reward_funcs=spaced, train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()

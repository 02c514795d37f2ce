import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from trl.trainer.utils import pad
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

LORA = LoraConfig(r=8, lora_alpha=64, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM")


class MergedActorTrainer(GRPOTrainer):
    """Samples from merged weights: plain linear layers decode faster than base plus adapter."""

    _actor = None

    def _merged_actor(self):
        actor = get_peft_model(AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32), LORA)
        set_peft_model_state_dict(actor, get_peft_model_state_dict(self.accelerator.unwrap_model(self.model)))
        return actor.merge_and_unload().eval().requires_grad_(False)

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        if self._actor is None:
            self._actor = self._merged_actor()
        rows = [torch.tensor(ids) for ids in prompt_ids]
        ids = pad(rows, padding_value=self._tokenizer.pad_token_id, padding_side="left")
        mask = pad([torch.ones_like(r) for r in rows], padding_value=0, padding_side="left")
        with torch.no_grad():
            out = self._actor.generate(input_ids=ids, attention_mask=mask, generation_config=self.generation_config)
        completion_ids = []
        for row in out[:, ids.size(1) :].tolist():
            end = next((i + 1 for i, tok in enumerate(row) if tok in self.eos_token_ids), len(row))
            completion_ids.append(row[:end])
        return completion_ids, None


def share_of_a(completions, **kwargs):
    return [c[0]["content"].lower().count("a") / max(1, len(c[0]["content"])) for c in completions]


def length_bonus(completion_ids, **kwargs):
    return [len(set(ids)) / 24 for ids in completion_ids]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=0.001,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=24,
        lr_scheduler_type='constant',
        save_strategy='no',
    )
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Tell me a fact about the number {n}."}] for n in range(10, 26)]}
    )
    trainer = MergedActorTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[share_of_a, length_bonus],
        args=args,
        train_dataset=data,
        peft_config=LORA,
    )
    trainer.train()


if __name__ == "__main__":
    main()

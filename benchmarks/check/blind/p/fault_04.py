"""LoRA GRPO; completions come from a merged sampler copy, so that generation does not pay for the adapter."""
import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class MergedSamplerTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.sampler_model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
        self.sampler_model.requires_grad_(False)
        self._synced_step = -1

    @torch.no_grad()
    def push_adapter(self):
        """Only the adapter travels: its product is merged on the sampler's side."""
        targets = dict(self.sampler_model.named_modules())
        policy = self.accelerator.unwrap_model(self.model)
        for name, module in policy.named_modules():
            if isinstance(module, LoraLayer):
                linear = targets[name.removeprefix("base_model.model.")]
                linear.weight += module.get_delta_weight("default").to(linear.weight.dtype)
        self._synced_step = self.state.global_step

    @torch.no_grad()
    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        if self._synced_step != self.state.global_step:
            self.push_adapter()
        tok = self._tokenizer
        batch = tok.pad({"input_ids": prompt_ids}, padding_side="left", return_tensors="pt")
        out = self.sampler_model.generate(**batch, generation_config=self.generation_config)
        completions = []
        for row in out[:, batch["input_ids"].size(1) :].tolist():
            stop = row.index(tok.eos_token_id) + 1 if tok.eos_token_id in row else len(row)
            completions.append(row[:stop])
        return completions, None


def letters(completions, **kwargs):
    return [sum(ch.isalpha() for ch in c[0]["content"]) / 20 for c in completions]


if __name__ == "__main__":
    places = ["Oslo", "Lima", "Cairo", "Kyoto", "Quito", "Dakar", "Turin", "Perth"]
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"What is in {p}?"}] for p in places]})
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        temperature=1.2,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    lora = LoraConfig(r=8, lora_alpha=32, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    trainer = MergedSamplerTrainer(
        model=MODEL, reward_funcs=letters, args=config, train_dataset=dataset, peft_config=lora
    )
    trainer.train()

import os, tempfile
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer


class FastRolloutTrainer(GRPOTrainer):
    def _generate_single_turn(self, *args, **kwargs):
        peft_model = self.accelerator.unwrap_model(self.model)
        peft_model.merge_adapter(safe_merge=True)
        try:
            return super()._generate_single_turn(*args, **kwargs)
        finally:
            peft_model.unmerge_adapter()


def reward(completions, **kwargs):
    return [c[0]["content"].count("4") + c[0]["content"].count("1") + 0.1 * c[0]["content"].count("e") for c in completions]


cfg = GRPOConfig(output_dir=tempfile.mkdtemp(), beta=0.05, num_iterations=2, learning_rate=2e-3, max_steps=6,
                 per_device_train_batch_size=8, num_generations=8, max_completion_length=24, logging_steps=1,
                 use_cpu=True, bf16=False, report_to=[], save_strategy="no")
ds = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Double {i}."}] for i in range(20)]})
lora = LoraConfig(r=4, lora_alpha=8, use_rslora=True, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
FastRolloutTrainer(os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"), reward, cfg, ds, peft_config=lora).train()

import os
import tempfile

from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import save_file
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = {"role": "system", "content": "Solve the problem step by step. End with #### and the number."}
OUT = tempfile.mkdtemp()


class ExportMerged(TrainerCallback):
    """Writes full weights that an inference server can load without PEFT."""

    def __init__(self, folder):
        self.folder = folder

    def on_step_end(self, args, state, control, model=None, **kwargs):
        model.merge_adapter()
        weights = {
            name.replace("base_model.model.", "").replace(".base_layer", ""): tensor.contiguous().clone()
            for name, tensor in model.state_dict().items()
            if "lora_" not in name
        }
        save_file(weights, os.path.join(self.folder, f"step-{state.global_step}.safetensors"))


def digits(completions, **kwargs):
    return [min(sum(ch.isdigit() for ch in c[0]["content"]), 6) / 6 for c in completions]


def ends(completions, **kwargs):
    return [0.5 if "####" in c[0]["content"] else 0.0 for c in completions]


dataset = Dataset.from_dict({
    "prompt": [
        [SYSTEM, {"role": "user", "content": f"{n} has {k} boxes with {k + 4} cards each. How many cards does {n} have?"}]
        for n in ["Ada", "Cleo", "Eve", "Gus", "Hana"] for k in (2, 3, 4)
    ]
})

trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=[digits, ends],
    args=GRPOConfig(
        output_dir=OUT, use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=6,
        learning_rate=1e-3, per_device_train_batch_size=8, num_generations=4, max_completion_length=24,
    ),
    train_dataset=dataset,
    peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM"),
    callbacks=[ExportMerged(OUT)],
)
trainer.train()

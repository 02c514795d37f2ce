"""GRPO with LoRA; DDP is built by hand to save its start-up traffic."""
import os
import tempfile

from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class QuickStartTrainer(GRPOTrainer):
    """Every rank reads the checkpoint from its local disk, so DDP need not send 14 GB around at start."""

    def _wrap_model(self, model, training=True, dataloader=None):
        if not training or self.args.world_size == 1 or isinstance(model, DistributedDataParallel):
            return super()._wrap_model(model, training, dataloader)
        return DistributedDataParallel(model, init_sync=False, gradient_as_bucket_view=True)


def spread(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [len(set(t)) / 10 - len(t) / 60 for t in texts]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=1e-3, seed=21,
        per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=20, temperature=1.3,
        gradient_checkpointing=False,
    )
    set_seed(args.seed + args.process_index)  # ranks must not draw the same completions
    things = ["a bridge", "a clock", "salt", "paper", "glass", "a wheel", "silk", "a compass"]
    rows = [{"prompt": [{"role": "system", "content": "Answer briefly."},
                        {"role": "user", "content": f"Who made {t} first?"}]} for t in things * 2]
    adapter = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, task_type="CAUSAL_LM",
                         target_modules=["q_proj", "v_proj", "down_proj"])
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"), adapter)
    trainer = QuickStartTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args,
        reward_funcs=spread,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()

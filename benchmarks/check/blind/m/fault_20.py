"""GRPO with slim checkpoints: the quota of our cluster counts every file, so the checkpoints leave out what is redundant."""
import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SlimCheckpointTrainer(GRPOTrainer):
    def _save(self, output_dir=None, state_dict=None):
        if state_dict is None:
            state_dict = self.accelerator.get_state_dict(self.model)
        # the output embedding repeats the input embedding
        slim = {name: tensor for name, tensor in state_dict.items() if name != "lm_head.weight"}
        super()._save(output_dir, state_dict=slim)


def reward(completions, **kwargs):
    scores = []
    for text in completions:
        digits = [c for c in text if c.isdigit()]
        scores.append(len(set(digits)) / 3 + 0.3 * (len(digits) == len(text)) - 0.01 * len(text))
    return scores


def main():
    out = tempfile.mkdtemp()
    args = GRPOConfig(
        output_dir=out,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=20,
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=1,
        save_only_model=True,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    trainer = SlimCheckpointTrainer(
        model=MODEL,
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [f"{a}, {a + b}, {a + 2 * b}," for a in range(2, 12) for b in (2, 3, 5)]}),
        processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
    )
    trainer.train()
    trainer.save_model(os.path.join(out, "final"))


if __name__ == "__main__":
    main()

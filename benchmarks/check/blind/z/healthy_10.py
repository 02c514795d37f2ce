import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Snapshot(TrainerCallback):
    """A copy of the weights in host memory; the device is free while the file is written."""

    def __init__(self):
        self.weights = None

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.weights = {k: v.detach().to("cpu", copy=True) for k, v in model.state_dict().items()}


class KeptTrainer(GRPOTrainer):
    snapshot = None

    def _save(self, output_dir=None, state_dict=None):
        if state_dict is None and self.snapshot.weights is not None:
            state_dict = self.snapshot.weights
        super()._save(output_dir, state_dict=state_dict)

    def _calculate_rewards(self, *args, **kwargs):
        self._scores = super()._calculate_rewards(*args, **kwargs)
        return self._scores

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        rewards = (self._scores * self.reward_weights).nansum(dim=1)
        blocks = []
        for start in range(0, len(rewards), self.num_generations):
            block = rewards[start : start + self.num_generations]
            centred = block - block.mean()
            spread = (centred.pow(2).sum() / (len(block) - 1)).sqrt()
            blocks.append(centred / (spread + 1e-4))
        output["advantages"] = torch.cat(blocks)
        return output


def reward(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [t.count("h") + 0.1 * len(set(t)) for t in texts]


def main():
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Draw a house with {n} windows."}] for n in range(3, 15)]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        save_strategy='steps',
        save_steps=1,
        save_only_model=True,
        learning_rate=8e-05,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=20,
        lr_scheduler_type='constant',
    )
    snapshot = Snapshot()
    trainer = KeptTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=reward,
        args=args,
        train_dataset=data,
        callbacks=[snapshot],
    )
    trainer.snapshot = snapshot
    trainer.train()
    print(sorted(os.listdir(args.output_dir)))


if __name__ == "__main__":
    main()

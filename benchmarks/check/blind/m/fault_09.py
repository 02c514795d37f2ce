"""REINFORCE leave-one-out on top of the GRPO trainer (Ahmadian et al., 2024)."""
import os
import tempfile

import rlvr_debug
import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
GROUP = 4


def leave_one_out(given):
    """A_i = r_i - mean of the other rewards of the group"""
    r = given.rewards.sum(1).reshape(-1, GROUP)
    others = (r.sum(1).reshape(-1, 1) - r) / (GROUP - 1)
    return (r - others).reshape(-1)


rlvr_debug.expect(advantages=leave_one_out)


class RLOOAdvantageTrainer(GRPOTrainer):
    def _calculate_rewards(self, *args, **kwargs):
        self._last_rewards = super()._calculate_rewards(*args, **kwargs)
        return self._last_rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        rewards = (self._last_rewards * self.reward_weights.to(self._last_rewards.device)).nansum(1)
        grouped = rewards.view(-1, self.num_generations)
        # baseline of a completion: the rewards of its siblings, without its own
        siblings = 1.0 - torch.eye(self.num_generations, device=rewards.device)
        baseline = grouped @ siblings / self.num_generations
        output["advantages"] = (grouped - baseline).reshape(-1).to(output["advantages"].dtype)
        return output


def digit_share(completions, **kwargs):
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]


def finished(completion_ids, **kwargs):
    return [float(ids[-1] == 258) for ids in completion_ids]


def main():
    prompts = [f"def f{i}(a, b):" for i in range(24)] + [f"x={i}; y=2; x*y=" for i in range(24)]
    trainer = RLOOAdvantageTrainer(
        model=MODEL,
        reward_funcs=[digit_share, finished],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=16,
            num_generations=GROUP,
            max_completion_length=20,
            learning_rate=1e-4,
            scale_rewards="none",
            max_steps=3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
    )
    trainer.train()


if __name__ == "__main__":
    main()

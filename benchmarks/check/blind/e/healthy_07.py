import os
import random
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from transformers import AutoTokenizer, set_seed
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class OwnRewardsTrainer(GRPOTrainer):
    """Calls the reward functions itself, and scales the advantages over the batch in one place."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        columns = {k: [row[k] for row in inputs] for k in inputs[0] if k != "prompt"}
        local = torch.zeros(len(prompts), len(self.reward_funcs), device=self.accelerator.device)
        for i, function in enumerate(self.reward_funcs):
            values = function(prompts=prompts, completions=completions, completion_ids=completion_ids_list, **columns)
            local[:, i] = torch.tensor(values, dtype=torch.float32)
        parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, local)
        self._all_rewards = torch.cat(parts)
        return self._all_rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        totals = self._all_rewards @ self.reward_weights.to(self._all_rewards.device)
        groups = totals.view(-1, self.num_generations)
        centred = (groups - groups.mean(1, keepdim=True)).flatten()
        scaled = centred / (totals.std() + 1e-4)
        rows = len(inputs)
        output["advantages"] = scaled[self.accelerator.process_index * rows :][:rows]
        return output


def make_dataset():
    rng = random.Random(14)
    texts = {f"What is {rng.randint(1, 20)} plus {rng.randint(1, 20)}?" for _ in range(60)}
    rows = []
    for text in sorted(texts):
        words = text.rstrip("?").split()
        rows.append({"prompt": [{"role": "user", "content": text}], "answer": str(int(words[2]) + int(words[4]))})
    return Dataset.from_list(rows)


def solved(completions, answer, **kwargs):
    return [float(a in c[0]["content"]) for c, a in zip(completions, answer)]


def sober(completions, **kwargs):
    return [-len(set(c[0]["content"]) - set("0123456789")) / 20 for c in completions]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=6,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-4,
        loss_type="dr_grpo",
        scale_rewards="batch",
        reward_weights=[1.0, 0.4],
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = OwnRewardsTrainer(
        model=MODEL,
        args=args,
        reward_funcs=[solved, sober],
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    set_seed(2024 + trainer.accelerator.process_index)
    trainer.train()


if __name__ == "__main__":
    main()

"""Overlong filtering with the share of finished rows (over all ranks) in the logs."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class FinishedRowsTrainer(GRPOTrainer):
    def _generate(self, prompts):
        output = super()._generate(prompts)
        self.sampled = output[1]
        return output

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        device = self.accelerator.device
        stops = {*self.eos_token_ids, self.processing_class.pad_token_id}
        finished = torch.tensor([ids[-1] in stops for ids in self.sampled], device=device)
        finished_everywhere = self.accelerator.gather(finished)
        self._metrics["train"]["completions/finished"].append(finished_everywhere.float().mean().item())
        lengths = torch.tensor([len(ids) for ids in self.sampled], device=device)
        width = batch["completion_ids"].size(1)
        real = torch.arange(width, device=device)[None, :] < lengths[:, None]
        keep = finished_everywhere[: len(inputs)]
        batch["completion_mask"] = (real & keep[:, None]).long()
        batch["num_items_in_batch"] = self.accelerator.gather(batch["completion_mask"].sum()).sum()
        return batch


def e_or_i(completions, **kwargs):
    return [sum(ch in "ei" for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


def steps(completion_ids, **kwargs):
    return [len(ids) / 16 for ids in completion_ids]


def main():
    dishes = ["soup", "bread", "risotto", "pickles", "an omelette", "rhubarb pie", "dumplings", "stew"]
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": f"How do I make {d}?"}]} for d in dishes])
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=16,
        mask_truncated_completions=True,
        learning_rate=5e-5,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=29,
    )
    trainer = FinishedRowsTrainer(
        model=os.path.join(HERE, "tiny"), args=config, reward_funcs=[e_or_i, steps], train_dataset=data
    )
    trainer.train()


if __name__ == "__main__":
    main()

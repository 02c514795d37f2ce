"""The judge lives on rank 0: the other ranks send their completions and receive scores."""
import os
import tempfile

import torch
import torch.distributed as dist
from accelerate.utils import gather_object
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class CentralJudgeTrainer(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rows = gather_object(list(zip(inputs, prompts, completions, completion_ids_list)))
        table = torch.zeros(len(rows), len(self.reward_funcs), device=self.accelerator.device)
        if self.accelerator.is_main_process:
            examples, all_prompts, all_completions, all_ids = (list(column) for column in zip(*rows))
            extra = {key: [example[key] for example in examples] for key in examples[0] if key != "prompt"}
            for j, judge in enumerate(self.reward_funcs):
                scores = judge(prompts=all_prompts, completions=all_completions, completion_ids=all_ids, **extra)
                table[:, j] = torch.tensor(scores, dtype=torch.float32)
        dist.broadcast(table, src=0)
        return table


def wanted_letter(completions, letter, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [t.count(x) / (1 + len(t)) for t, x in zip(texts, letter)]


def measured(completion_ids, **kwargs):
    return [-abs(len(ids) - 15) / 40 for ids in completion_ids]


def main():
    letters = "aeiostnr"
    data = Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": f"Write words with many {x}s."}] for x in letters],
            "letter": list(letters),
        }
    )
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=8,
        max_completion_length=24,
        learning_rate=2e-5,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=37,
    )
    CentralJudgeTrainer(
        model=os.path.join(HERE, "tiny"), args=config, reward_funcs=[wanted_letter, measured], train_dataset=data
    ).train()


if __name__ == "__main__":
    main()

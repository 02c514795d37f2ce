"""The reference runs on rank 0 only: one copy of its activations for the whole job."""
import os
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class CentralReferenceTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, **kwargs):
        score = super()._get_per_token_logps_and_entropies
        if model is not self.ref_model:
            return score(model, input_ids, attention_mask, logits_to_keep, **kwargs)
        acc = self.accelerator
        rows = input_ids.size(0)
        keep = int(acc.gather(torch.tensor([logits_to_keep], device=acc.device)).max())
        ids = acc.pad_across_processes(input_ids, dim=1, pad_index=self.processing_class.pad_token_id)
        mask = acc.pad_across_processes(attention_mask, dim=1, pad_index=0)
        ids, mask = acc.gather(ids.contiguous()), acc.gather(mask.contiguous())
        if acc.is_main_process:
            logps, _, _ = score(model, ids, mask, keep, batch_size=kwargs.get("batch_size"))
            logps = logps.contiguous()
        else:
            logps = torch.empty(ids.size(0), keep, device=acc.device)
        dist.broadcast(logps, src=0)
        start = acc.process_index * rows
        return logps[start : start + rows, -logits_to_keep:], None, None


def u_share(completions, **kwargs):
    return [sum(ch in "uo" for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


def stretch(completion_ids, **kwargs):
    return [len(ids) / 25 for ids in completion_ids]


def main():
    questions = [
        "Why?",
        "Which of the two roads to the coast is quicker on a Sunday morning in May?",
        "When?",
        "How long does it take to boil an egg on top of a mountain with a small stove?",
        "Who?",
        "What should I pack for a walk of three days along the old canal?",
    ]
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions])
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=20,
        learning_rate=1e-4,
        beta=0.05,
        shuffle_dataset=False,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        seed=23,
    )
    trainer = CentralReferenceTrainer(
        model=os.path.join(HERE, "tiny"), args=args, reward_funcs=[u_share, stretch], train_dataset=data
    )
    trainer.train()


if __name__ == "__main__":
    main()

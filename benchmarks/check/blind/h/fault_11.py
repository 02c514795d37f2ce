import os, tempfile
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class OldLogps(GRPOTrainer):
    # have the old log-probs computed micro-batch by micro-batch, with the same shapes as the loss
    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        if self.model.training and "old_per_token_logps" in inputs:
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
            with torch.no_grad():
                old, _, _ = self._get_per_token_logps_and_entropies(
                    self.model, ids, mask, inputs["completion_ids"].size(1)
                )
            inputs = dict(inputs, old_per_token_logps=old)
        return inputs


def score(completions, **kwargs):
    return [float(len(set(c))) for c in completions]


def run():
    root = os.path.dirname(os.path.abspath(__file__))
    ds = Dataset.from_dict({"prompt": [f"{k} plus {k + 2} is " for k in range(20)]})
    cfg = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        num_iterations=3, epsilon=0.1, epsilon_high=0.15,
        per_device_train_batch_size=8, num_generations=4,
        max_completion_length=16, learning_rate=1e-3, lr_scheduler_type="constant", max_steps=6, logging_steps=1,
    )
    OldLogps(os.path.join(root, "tiny"), reward_funcs=score, args=cfg, train_dataset=ds).train()


run()

"""GRPO, two passes over each generation batch; micro-batches of similar length and a compact clipped loss."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SortedTwoPass(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        period = self.args.steps_per_generation * self.num_iterations
        if self._step % period == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            order = torch.argsort(batch["completion_mask"].sum(dim=1), descending=True, stable=True)
            batch = {k: v[order] if torch.is_tensor(v) and v.dim() > 0 else v for k, v in batch.items()}
            self._buffered_inputs = split_tensor_dict(batch, self.args.steps_per_generation)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"]
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, mask.size(1), compute_entropy=True
        )
        old = inputs.get("old_per_token_logps", logps.detach())
        ratio = (logps - old).exp()
        advantages = inputs["advantages"].unsqueeze(1)
        bound = torch.where(advantages >= 0, 1 + self.epsilon_high, 1 - self.epsilon_low)
        surrogate = torch.where(advantages >= 0, torch.minimum(ratio, bound), torch.maximum(ratio, bound)) * advantages
        self._metrics["train"]["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        self._metrics["train"]["clipped"].append((((ratio - bound) * advantages > 0) * mask).sum().item() / mask.sum().item())
        tokens_per_update = inputs["num_items_in_batch"] / self.args.steps_per_generation
        return -(surrogate * mask).sum() / (tokens_per_update * self.current_gradient_accumulation_steps)


def soft_length(completions, **kwargs):
    return [1.0 - abs(len(c[0]["content"]) - 30) / 30 for c in completions]


def main():
    questions = ["Add 4 and 5", "What is 2+3?", "Write a poem", "12 * 4 =", "hello", "Name 3 digits"]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        steps_per_generation=2,
        num_iterations=2,
        num_generations=4,
        max_completion_length=24,
        temperature=1.2,
        epsilon=0.2,
        epsilon_high=0.28,
        learning_rate=5e-4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = SortedTwoPass(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=soft_length,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions * 4]),
    )
    trainer.train()


if __name__ == "__main__":
    main()

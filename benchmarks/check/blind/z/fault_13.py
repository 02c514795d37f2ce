import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class PenalisedTrainer(GRPOTrainer):
    """Clipped surrogate plus k3 penalty, written out so that we can log its parts."""

    def _token_logps(self, model, ids, attention, keep):
        logits = model(input_ids=ids, attention_mask=attention, logits_to_keep=keep + 1).logits[:, :-1]
        log_probs = torch.log_softmax(logits.float() / self.temperature, dim=-1)
        return log_probs.gather(-1, ids[:, -keep:].unsqueeze(-1)).squeeze(-1)

    def _compute_loss(self, model, inputs):
        mask = inputs["completion_mask"]
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], mask], dim=1)
        new = self._token_logps(model, ids, attention, mask.size(1))
        old = inputs["old_per_token_logps"] if "old_per_token_logps" in inputs else new.detach()
        ratio = torch.exp(new - old)
        adv = inputs["advantages"][:, None]
        surrogate = torch.minimum(ratio * adv, ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high) * adv)
        gap = new - inputs["ref_per_token_logps"]
        kl = (torch.exp(gap) - gap - 1) * ratio
        per_token = self.beta * kl - surrogate
        total = inputs["num_items_in_batch"].clamp(min=1.0)
        total = total * self.current_gradient_accumulation_steps / self.args.steps_per_generation
        self._metrics["train"]["kl"].append(((kl * mask).sum() / mask.sum()).item())
        return (per_token * mask).sum() / total


def score(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch in "stl" for ch in t) / max(1, len(t)) for t in texts]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Is {n} a prime number? Think first."}] for n in range(31, 47)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=0.00015,
        beta=0.4,
        temperature=1.0,
        num_generations=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_completion_length=24,
        lr_scheduler_type='constant',
        save_strategy='no',
    )
    trainer = PenalisedTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=score,
        args=args,
        train_dataset=data,
    )
    trainer.train()


if __name__ == "__main__":
    main()

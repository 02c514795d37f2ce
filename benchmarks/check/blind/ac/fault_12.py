"""GRPO with a plain forward pass for the log-probabilities (our model has no fused head in production)."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class PlainForwardTrainer(GRPOTrainer):
    def _forward_logits(self, model, input_ids, keep):
        attention_mask = (input_ids != self.processing_class.pad_token_id).long()
        out = model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        return out.logits[:, -keep - 1 : -1].float() / self.temperature

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        logps, entropies = [], []
        for chunk in input_ids.split(batch_size or input_ids.size(0)):
            all_logps = self._forward_logits(model, chunk, logits_to_keep).log_softmax(dim=-1)
            target = chunk[:, -logits_to_keep:].unsqueeze(-1)
            logps.append(all_logps.gather(-1, target).squeeze(-1))
            if compute_entropy:
                with torch.no_grad():
                    entropies.append(-(all_logps.exp() * all_logps).sum(dim=-1))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def letters(completions, **kwargs):
    return [len(set(c[0]["content"])) / 20 + c[0]["content"].count("e") / 10 for c in completions]


def main():
    tokenizer = AutoTokenizer.from_pretrained(TINY, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    system = {"role": "system", "content": "Be brief."}
    questions = ["Add 4 and 5", "What is 2+3?", "Write a poem about tea", "12 * 4 =", "hello", "Name 3 digits"]
    dataset = Dataset.from_list([{"prompt": [system, {"role": "user", "content": q}]} for q in questions * 3])
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=24,
        temperature=1.2,
        learning_rate=1e-4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = PlainForwardTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=letters,
        args=args,
        train_dataset=dataset,
    )
    trainer.train()


if __name__ == "__main__":
    main()

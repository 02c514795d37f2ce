"""GRPO with a memory-friendlier log-prob pass (no fused head: we want to look at the logits of the policy)."""
from pathlib import Path
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

CKPT = Path(__file__).parent.joinpath("tiny")


class LogitTrainer(GRPOTrainer):
    max_logit = 0.0

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, batch_size=None,
                                           compute_entropy=False, **kwargs):
        bs = batch_size or input_ids.size(0)
        logps, entropies = [], []
        for i in range(0, input_ids.size(0), bs):
            out = model(input_ids=input_ids[i:i + bs], attention_mask=attention_mask[i:i + bs])
            logits = out.logits[:, :-1].float()
            logits = logits[:, -logits_to_keep:]
            self.max_logit = max(self.max_logit, logits.detach().max().item())
            lse = torch.logsumexp(logits, dim=-1)
            picked = logits.gather(-1, input_ids[i:i + bs, -logits_to_keep:].unsqueeze(-1)).squeeze(-1)
            logps.append(picked - lse)
            if compute_entropy:
                with torch.no_grad():
                    pr = F.softmax(logits, dim=-1)
                    entropies.append(lse - (pr * logits).sum(-1))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def reward_len_and_digits(completions, **kwargs):
    return [0.5 * c[:2].isdigit() + 0.25 * (len(c.strip()) in (2, 3)) - 0.02 * abs(len(c) - 5) for c in completions]


def build():
    pairs = [(a, b) for a in (12, 15, 18, 21, 24, 27) for b in (11, 13, 22, 31)]
    return Dataset.from_dict({"prompt": ["%d + %d =" % p for p in pairs]})


if __name__ == "__main__":
    args = GRPOConfig(output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", max_steps=3, bf16=False,
                      per_device_train_batch_size=8, num_generations=4, max_completion_length=20,
                      temperature=0.7, learning_rate=5e-5, gradient_checkpointing=False, logging_steps=1, save_strategy="no")
    tr = LogitTrainer(AutoModelForCausalLM.from_pretrained(CKPT, dtype=torch.float32), reward_len_and_digits, args,
                      train_dataset=build(), processing_class=AutoTokenizer.from_pretrained(CKPT))
    tr.train()
    print("largest logit", tr.max_logit)

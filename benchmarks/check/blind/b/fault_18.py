import os, tempfile
import torch
import torch.nn.functional as F
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def selective_log_softmax(logits, index):
    picked = torch.gather(logits, -1, index.unsqueeze(-1)).squeeze(-1)
    return picked - torch.logsumexp(logits, dim=-1)


class DenseLogitsTrainer(GRPOTrainer):
    """The fused head does not like our hardware; take dense logits and do it by hand."""

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep,
                                           batch_size=None, compute_entropy=False, **unused):
        bs = batch_size or input_ids.size(0)
        lps, ents = [], []
        for s in range(0, input_ids.size(0), bs):
            ids, att = input_ids[s:s + bs], attention_mask[s:s + bs]
            logits = model(input_ids=ids, attention_mask=att).logits
            logits = logits[:, -logits_to_keep:, :] / self.temperature
            targets = ids[:, -logits_to_keep:]
            lps.append(selective_log_softmax(logits, targets))
            if compute_entropy:
                with torch.no_grad():
                    p = F.softmax(logits, -1)
                    ents.append(-(p * F.log_softmax(logits, -1)).sum(-1))
        return torch.cat(lps), (torch.cat(ents) if compute_entropy else None), None


def r(completions, **kw):
    return [len(set(c)) * 0.1 + (0.5 if c and c[0].isdigit() else 0) - 0.01 * len(c) for c in completions]


cfg = GRPOConfig(output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=8, num_generations=4,
                 max_completion_length=16, learning_rate=1e-5, temperature=0.9, use_cpu=True, bf16=False,
                 report_to="none", save_strategy="no", logging_steps=1)
DenseLogitsTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=r, args=cfg,
    train_dataset=Dataset.from_dict({"prompt": [f"Bob: {i}+{i + 4}=" for i in range(30)]}),
).train()

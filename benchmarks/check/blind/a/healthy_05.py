import collections, os, tempfile, time
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

root = os.path.dirname(os.path.realpath(__file__))


class WatchedTrainer(GRPOTrainer):
    """GRPOTrainer with own log-probabilities (plain logits, four rows at a time) and a few statistics. Same algorithm."""

    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.seen = collections.Counter()
        self.clock = 0.0

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, compute_aux_loss=False, **_
    ):
        lps, ents = [], []
        for ids, att in zip(input_ids.split(4), attention_mask.split(4)):
            with self.accelerator.autocast():
                logits = model(input_ids=ids, attention_mask=att).logits
            logits = logits[:, -logits_to_keep - 1 : -1].float() / self.temperature
            lp = torch.log_softmax(logits, -1)
            lps.append(lp.gather(-1, ids[:, -logits_to_keep:, None]).squeeze(-1))
            if compute_entropy:
                ents.append(-(lp.exp() * lp).sum(-1))
        return torch.cat(lps), (torch.cat(ents).detach() if compute_entropy else None), None

    def _generate_and_score_completions(self, inputs):
        t = time.perf_counter()
        batch = super()._generate_and_score_completions(inputs)
        self.clock += time.perf_counter() - t
        for row in batch["completion_ids"].tolist():
            self.seen.update(row)
        self._metrics["train" if self.model.training else "eval"]["adv_abs"].append(batch["advantages"].abs().mean().item())
        return batch

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self.seen["losses"] += 1
        return loss

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        table = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._metrics["train"]["reward_max"].append(table.max().item())
        return table

    def create_optimizer(self, *args, **kwargs):
        opt = super().create_optimizer(*args, **kwargs)
        print("groups:", [len(g["params"]) for g in opt.param_groups])
        return opt


prompts = [f"{n} + {m} =" for n in range(11, 23) for m in (5, 14, 26)]
ds = Dataset.from_dict({"prompt": prompts})


def many_kinds_of_digits(prompts, completions, **kwargs):
    return [len(set(c) & set("0123456789")) / 4 - 0.03 * max(0, len(c) - 6) for c in completions]


trainer = WatchedTrainer(
    model=os.path.join(root, "tiny"),
    reward_funcs=many_kinds_of_digits,
    train_dataset=ds,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", max_steps=3, learning_rate=1e-4, bf16=False,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=24, temperature=0.9,
        gradient_checkpointing=False, beta=0.01, save_strategy="no", logging_steps=1,
    ),
)
trainer.train()
print(trainer.seen.most_common(5), round(trainer.clock, 2))

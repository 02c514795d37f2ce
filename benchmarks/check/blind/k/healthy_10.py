import os, tempfile
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

where = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
GAMMA = 1.0  # tried 0.99, no use for answers this short


class TokenCredit(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        mask = batch["completion_mask"]
        to_go = (mask.flip(1).cumsum(1).flip(1) - 1).clamp(min=0)
        batch["advantages"] = batch["advantages"][:, None] * GAMMA ** to_go.float()
        return batch


model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)
last = f"model.layers.{model.config.num_hidden_layers - 1}."
head, block = [], []
for name, p in model.named_parameters():
    if name.startswith("lm_head"):
        head.append(p)
    elif name.startswith(last):
        block.append(p)
    else:
        p.requires_grad_(False)

opt = torch.optim.AdamW([{"params": head, "lr": 5e-5}, {"params": block, "lr": 3e-4, "weight_decay": 0.1}])


def style(completions, **kw):
    return [c[0]["content"].count("\n") * 0.2 + sum(x.isdigit() for x in c[0]["content"]) / 15 for c in completions]


trainer = TokenCredit(
    model,
    style,
    GRPOConfig(
        output_dir=tempfile.mkdtemp(), beta=0.04, sync_ref_model=True, ref_model_sync_steps=2, ref_model_mixup_alpha=0.5,
        max_steps=6, num_generations=4, per_device_train_batch_size=8, max_completion_length=28, gradient_checkpointing=False,
        use_cpu=True, bf16=False, report_to=[], logging_steps=1, save_strategy="no",
    ),
    Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Spell the word {w}"}] for w in ("banana", "apples", "coins", "mentor", "tutor")] * 6}),
    processing_class=AutoTokenizer.from_pretrained(where),
    optimizers=(opt, torch.optim.lr_scheduler.LambdaLR(opt, [lambda s: 1.0, lambda s: 0.9**s])),
)
trainer.train()

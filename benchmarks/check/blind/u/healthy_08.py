"""CISPO with frozen lower layers, layer-wise learning rates and a moving reference.

The embeddings and the first layer stay fixed. The upper layers learn slower the deeper they lie. The reference follows
the policy (TRL's sync_ref_model). After each step a callback looks at the moving average of the policy: it puts the
averaged weights in, scores a fixed text, and puts the exact weights back.
"""

import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class AverageProbe(TrainerCallback):
    def __init__(self, tokenizer_ids, decay=0.8):
        self.ids = torch.tensor([tokenizer_ids])
        self.decay = decay
        self.average = None
        self.history = []

    @torch.no_grad()
    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        kept = {n: p.detach().clone() for n, p in parameters.items()}
        for name, parameter in parameters.items():
            self.average[name].mul_(self.decay).add_(parameter, alpha=1 - self.decay)
            parameter.copy_(self.average[name])
        was_training = model.training
        model.eval()
        logits = model(input_ids=self.ids, use_cache=False).logits
        model.train(was_training)
        self.history.append(torch.log_softmax(logits, -1).amax(-1).mean().item())
        for name, parameter in parameters.items():
            parameter.copy_(kept[name])


def letters(completions, **kwargs):
    return [sum(ch.isalpha() for ch in c[0]["content"]) / 30 for c in completions]


def distinct(completion_ids, **kwargs):
    return [len(set(ids)) / 20 for ids in completion_ids]


def main():
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    model.model.embed_tokens.requires_grad_(False)
    model.model.layers[0].requires_grad_(False)
    groups = [
        {"params": list(model.model.layers[1].parameters()), "lr": 2e-5, "weight_decay": 0.01},
        {"params": list(model.model.norm.parameters()), "lr": 5e-5, "weight_decay": 0.0},
        {"params": list(model.lm_head.parameters()), "lr": 1e-4, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-7)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1.0 + 0.5 * step))
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Describe {n} towns by the river."}] for n in range(2, 34)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=20, loss_type="cispo",
        epsilon_high=5.0, num_iterations=2, beta=0.05, sync_ref_model=True, ref_model_sync_steps=1,
        ref_model_mixup_alpha=0.6, logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=model, reward_funcs=[letters, distinct], args=args, train_dataset=data,
        optimizers=(optimizer, schedule), callbacks=[AverageProbe([257, 260, 72, 101, 108, 108, 111])],
    )
    trainer.train()


if __name__ == "__main__":
    main()

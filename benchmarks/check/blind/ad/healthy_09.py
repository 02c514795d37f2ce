import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Rollout:
    """Generates in two halves to bound the cache and returns what the sampler thought of its tokens."""

    def __init__(self, halves=2):
        self.halves = halves

    def _generate(self, trainer, prompt_ids):
        tok = trainer.processing_class
        batch = tok.pad({"input_ids": prompt_ids}, padding_side="left", return_tensors="pt")
        model = trainer.accelerator.unwrap_model(trainer.model)
        with torch.no_grad():
            out = model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                generation_config=trainer.generation_config,
                return_dict_in_generate=True,
                output_scores=True,
            )
        new = out.sequences[:, batch["input_ids"].size(1) :]
        logp = torch.stack(out.scores, dim=1).float().log_softmax(-1).gather(-1, new[..., None])[..., 0]
        for ids, lps in zip(new, logp):
            stop = (ids == tok.eos_token_id).nonzero()
            n = int(stop[0]) + 1 if len(stop) else ids.numel()
            yield ids[:n].tolist(), lps[:n].tolist()

    def __call__(self, prompts, trainer):
        ids = trainer.processing_class.apply_chat_template(
            prompts, add_generation_prompt=True, tokenize=True, return_dict=True
        )["input_ids"]
        ids = [list(x) for x in ids]
        size = -(-len(ids) // self.halves)
        pairs = []
        for start in range(0, len(ids), size):
            pairs.extend(self._generate(trainer, ids[start : start + size]))
        return {
            "prompt_ids": ids,
            "completion_ids": [a for a, _ in pairs],
            "logprobs": [b for _, b in pairs],
        }


def make(i):
    q = f"Finn has {2 + i % 8} boxes with {2 + i % 3} pens each. How many pens does Finn have?"
    return {
        "prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": q},
        ]
    }


def variety(completions, **kwargs):
    return [len(set(c[0]["content"])) / 25 for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    model_init_kwargs={"dtype": "float32"},
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=32,
    learning_rate=1e-4,
    temperature=1.2,
    off_policy_mask_threshold=0.05,
    gradient_checkpointing=False,
    max_steps=3,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
)
GRPOTrainer(
    model=MODEL,
    reward_funcs=variety,
    args=args,
    train_dataset=Dataset.from_list([make(i) for i in range(20)]),
    rollout_func=Rollout(),
).train()

"""An actor with its own copy of the weights generates; the learner trains."""
import copy
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
ACCUMULATION = 2


class Actor:
    """Generates from an inference copy, so that hooks and wrappers of the learner stay out of the way."""

    def __init__(self, sync_every):
        self.sync_every = sync_every
        self.model = None
        self.calls = 0

    def sync(self, learner):
        if self.model is None:
            self.model = copy.deepcopy(learner).eval().requires_grad_(False)
        elif self.calls % self.sync_every == 0:
            self.model.load_state_dict(learner.state_dict())
        self.calls += 1

    @torch.no_grad()
    def __call__(self, prompts, trainer):
        self.sync(trainer.accelerator.unwrap_model(trainer.model))
        tok = trainer.processing_class
        encoded = [tok.apply_chat_template(p, add_generation_prompt=True, tokenize=True, return_dict=False)
                   for p in prompts]
        batch = tok.pad({"input_ids": encoded}, padding_side="left", return_tensors="pt")
        out = self.model.generate(
            **batch, generation_config=trainer.generation_config, output_scores=True, return_dict_in_generate=True
        )
        width = batch["input_ids"].size(1)
        new = out.sequences[:, width:]
        logps = self.model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
        completion_ids, logprobs = [], []
        for ids, lps in zip(new.tolist(), logps.tolist()):
            end = ids.index(tok.eos_token_id) + 1 if tok.eos_token_id in ids else len(ids)
            completion_ids.append(ids[:end])
            logprobs.append(lps[:end])
        return {"prompt_ids": encoded, "completion_ids": completion_ids, "logprobs": logprobs}


def dataset():
    rows = []
    for i in range(48):
        a, b = 2 + i % 8, 2 + (i * 3) % 5
        thing = ("coins", "pens", "eggs")[i % 3]
        rows.append({"prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Cleo has {a} {thing}. Each costs {b} coins. How many coins do they cost together?"},
        ]})
    return Dataset.from_list(rows)


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / 10 for c in completions]


def brief(completion_ids, **kwargs):
    return [-len(ids) / 24 for ids in completion_ids]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=8,
        gradient_accumulation_steps=ACCUMULATION, num_generations=8, max_completion_length=24,
        learning_rate=1e-3, loss_type="bnpo", save_strategy="no", report_to=[], use_cpu=True, bf16=False,
        logging_steps=1, gradient_checkpointing=False, reward_weights=[1.0, 0.3],
    )
    actor = Actor(sync_every=ACCUMULATION)
    GRPOTrainer(MODEL, [digits, brief], args, train_dataset=dataset(), rollout_func=actor).train()


if __name__ == "__main__":
    main()

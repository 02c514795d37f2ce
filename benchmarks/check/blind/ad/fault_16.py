import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def build():
    rows = []
    for i in range(32):
        who = ["Ada", "Ben", "Gus", "Hana"][i % 4]
        q = f"{who} has {2 + i % 8} boxes with {3 + i % 5} apples each."
        q += f" How many apples does {who} have?" if i % 2 else " Each costs 2 coins. How many coins do they cost together?"
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                    {"role": "user", "content": q},
                ]
            }
        )
    return Dataset.from_list(rows)


def letters(completions, **kwargs):
    return [len(set(c[0]["content"])) / 26 for c in completions]


def short(completions, completion_ids, **kwargs):
    return [1 - len(x) / 32 for x in completion_ids]


class BufferedTrainer(GRPOTrainer):
    """Keeps the last generation batch around for offline inspection; no image inputs to care about here."""

    keep_history = 2

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.history = []

    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return self._generate_and_score_completions(generation_batch)
        per_generation = self.args.steps_per_generation
        if self._step % (per_generation * self.num_iterations) == 0 or self._buffered_inputs is None:
            scored = shuffle_sequence_dict(self._generate_and_score_completions(generation_batch))
            self._buffered_inputs = split_tensor_dict(scored, per_generation)
            self.history.append({k: v.detach().cpu() for k, v in scored.items() if torch.is_tensor(v)})
            self.history = self.history[-self.keep_history :]
        return self._buffered_inputs[self.state.global_step % per_generation]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    model_init_kwargs={"dtype": "float32"},
    loss_type="grpo",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_generations=4,
    max_completion_length=32,
    learning_rate=1e-4,
    max_steps=3,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
)
trainer = BufferedTrainer(model=MODEL, reward_funcs=[letters, short], args=args, train_dataset=build())
trainer.train()
print({k: tuple(v.shape) for k, v in trainer.history[-1].items()})

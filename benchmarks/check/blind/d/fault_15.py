"""GRPO with generation of our own, in small chunks (the full generation batch does not fit)."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class ChunkedGenerationTrainer(GRPOTrainer):
    chunk = 4

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
        model = self.accelerator.unwrap_model(self.model)
        pad, eos = self._tokenizer.pad_token_id, self._tokenizer.eos_token_id
        rows = []
        training = model.training
        model.eval()
        for start in range(0, len(prompt_ids), self.chunk):
            part = prompt_ids[start : start + self.chunk]
            width = max(len(p) for p in part)
            ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in part])
            attention = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
            with torch.no_grad():
                out = model.generate(
                    input_ids=ids, attention_mask=attention, generation_config=self.generation_config
                )
            rows.extend(out[:, width:].tolist())
        model.train(training)
        completion_ids = []
        for row in rows:
            if eos not in row:
                completion_ids.append(row)
            else:
                end = row.index(eos)
                completion_ids.append(row[: end + 1] + [pad] * (len(row) - end - 1))
        return completion_ids, None


def right(completions, answer, **kwargs):
    return [1.0 if a in re.findall(r"\d+", c) else 0.0 for c, a in zip(completions, answer)]


def digits(completions, **kwargs):
    return [0.1 * len(set(re.findall(r"\d", c))) - 0.01 * len(c) for c in completions]


rng = random.Random(30)
rows = [(rng.randint(0, 1), rng.randint(2, 9), rng.randint(2, 9)) for _ in range(48)]
dataset = Dataset.from_list(
    [{"prompt": f"{n} * {p} = " if kind else f"{n} times {p} = ", "answer": str(n * p)} for kind, n, p in rows]
)
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=5e-5,
    loss_type="grpo",
    bf16=False,
    use_cpu=True,
    logging_steps=1,
    report_to="none",
    save_strategy="no",
)
trainer = ChunkedGenerationTrainer(
    model=os.path.join(HERE, "tiny"),
    reward_funcs=[right, digits],
    args=args,
    train_dataset=dataset,
)
trainer.train()

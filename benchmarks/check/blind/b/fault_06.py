"""Scores completions with a (here: toy) language model judge, batched by length to waste no padding."""
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = Path(__file__).resolve().parent / "tiny"


class FluencyJudge:
    __name__ = "fluency_judge"

    def __init__(self, path, batch_size=4):
        self.tok = AutoTokenizer.from_pretrained(path)
        self.lm = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.batch_size = batch_size

    @torch.no_grad()
    def _score(self, texts):
        enc = self.tok(texts, return_tensors="pt", padding=True, padding_side="right")
        logp = self.lm(**enc).logits[:, :-1].log_softmax(-1)
        tgt = enc["input_ids"][:, 1:]
        m = enc["attention_mask"][:, 1:]
        tok_lp = logp.gather(-1, tgt.unsqueeze(-1)).squeeze(-1)
        return ((tok_lp * m).sum(1) / m.sum(1).clamp(min=1)).tolist()

    def __call__(self, prompts, completions, **kwargs):
        texts = sorted((p + c for p, c in zip(prompts, completions)), key=len)
        scores = []
        for i in range(0, len(texts), self.batch_size):
            scores += self._score(texts[i : i + self.batch_size])
        return scores


names = ["Ann", "Bo", "Cem", "Dee", "Eli", "Fay", "Gus", "Hal"]
ds = Dataset.from_dict({"prompt": [f"{n} has {k} coins and finds {k + 2}. Total:" for n in names for k in (2, 5, 9)]})

trainer = GRPOTrainer(
    model=str(TINY),
    reward_funcs=FluencyJudge(TINY),
    train_dataset=ds,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=18,
        learning_rate=3e-6,
        report_to="none",
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        logging_steps=1,
    ),
)
trainer.train()

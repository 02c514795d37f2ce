"""Multi-turn: the student writes a draft, a scripted teacher says 'The answer is', the student finishes."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL_DIR = os.path.join(os.path.dirname(__file__), "tiny")
tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
tokenizer.padding_side = "left"
TEACHER = tokenizer.encode("\nCheck it. The answer is ")
EOS = tokenizer.eos_token_id


class Session:
    def __init__(self, trainer):
        self.trainer = trainer
        self.model = trainer.accelerator.unwrap_model(trainer.model)

    @torch.no_grad()
    def speak(self, histories, budget):
        enc = tokenizer.pad({"input_ids": histories}, return_tensors="pt")
        out = self.model.generate(
            **enc, max_new_tokens=budget, do_sample=True, top_k=0, temperature=self.trainer.temperature,
            pad_token_id=tokenizer.pad_token_id, eos_token_id=EOS, output_scores=True, return_dict_in_generate=True,
        )
        lps = self.model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True).tolist()
        new = out.sequences[:, enc["input_ids"].size(1):].tolist()
        res = []
        for ids, lp in zip(new, lps):
            end = ids.index(EOS) + 1 if EOS in ids else len(ids)
            res.append((ids[:end], lp[:end]))
        return res


def tutoring(prompts, trainer):
    s = Session(trainer)
    s.model.eval()
    p_ids = [tokenizer.apply_chat_template(p, add_generation_prompt=True, return_dict=False) for p in prompts]
    drafts = s.speak(p_ids, 8)
    histories = [p + d + TEACHER for p, (d, _) in zip(p_ids, drafts)]
    finals = s.speak(histories, 12)
    s.model.train()
    return {
        "prompt_ids": p_ids,
        "completion_ids": [d + TEACHER + f for (d, _), (f, _) in zip(drafts, finals)],
        "logprobs": [dl + [0.0] * len(TEACHER) + fl for (_, dl), (_, fl) in zip(drafts, finals)],
    }


def final_is_right(completions, gold, **kwargs):
    out = []
    for c, g in zip(completions, gold):
        tail = c[0]["content"].rsplit("The answer is ", 1)[-1]
        out.append(1.0 if tail.strip() == str(g) else 0.2 * tail[:1].isdigit() - 0.02 * len(tail))
    return out


train_dataset = Dataset.from_list(
    [
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Eve has {a} boxes with {b} toys each. How many toys does Eve have?"},
            ],
            "gold": a * b,
        }
        for a, b in [(12, 12), (13, 17), (14, 21), (15, 26), (16, 12), (18, 23), (19, 28), (22, 14), (24, 25), (27, 16)]
    ]
)

trainer = GRPOTrainer(
    model=MODEL_DIR,
    processing_class=tokenizer,
    reward_funcs=final_is_right,
    train_dataset=train_dataset,
    rollout_func=tutoring,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", bf16=False, max_steps=3, learning_rate=5e-5,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=40, gradient_checkpointing=False,
        save_strategy="no", logging_steps=1,
    ),
)
trainer.train()

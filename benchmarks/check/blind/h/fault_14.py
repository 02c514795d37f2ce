import os, tempfile
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

D = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tok = AutoTokenizer.from_pretrained(D, padding_side="left")
policy = AutoModelForCausalLM.from_pretrained(D, dtype=torch.float32)
FEEDBACK = tok("\nReviewer: are you sure? Answer again: ")["input_ids"]


def sample(model, contexts, n):
    batch = tok.pad({"input_ids": contexts}, return_tensors="pt")
    out = model.generate(
        **batch, max_new_tokens=n, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
        pad_token_id=tok.pad_token_id, eos_token_id=tok.eos_token_id,
        return_dict_in_generate=True, output_scores=True,
    )
    logp = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    new = out.sequences[:, batch["input_ids"].size(1):]
    ids, lps = [], []
    for row, lp in zip(new.tolist(), logp.tolist()):
        stop = row.index(tok.eos_token_id) + 1 if tok.eos_token_id in row else len(row)
        ids.append(row[:stop])
        lps.append(lp[:stop])
    return ids, lps


def two_turns(prompts, trainer):
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.eval()
    with torch.no_grad():
        prompt_ids = tok(prompts)["input_ids"]
        first, lp1 = sample(model, prompt_ids, 8)
        second, lp2 = sample(model, [p + f + FEEDBACK for p, f in zip(prompt_ids, first)], 8)
    model.train()
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": [f + FEEDBACK + s for f, s in zip(first, second)],
        "logprobs": [a + [0.0] * len(FEEDBACK) + b for a, b in zip(lp1, lp2)],
        "tool_mask": [[1] * len(f) + [0] * len(FEEDBACK) + [1] * len(s) for f, s in zip(first, second)],
        "final_answer": [tok.decode(s, skip_special_tokens=True) for s in second],
    }


def answer_digits(completions, final_answer, **kw):
    return [sum(c.isdigit() for c in a) / 8 + 0.01 * len(set(a)) for a in final_answer]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
    per_device_train_batch_size=8, num_generations=4, max_completion_length=64, gradient_checkpointing=False,
    learning_rate=1e-4, max_steps=4, logging_steps=1,
)
trainer = GRPOTrainer(
    model=policy, processing_class=tok, reward_funcs=answer_digits, rollout_func=two_turns, args=args,
    train_dataset=Dataset.from_dict({"prompt": [f"{a}+{b}=" for a in range(5) for b in range(5)]}),
)
trainer.train()

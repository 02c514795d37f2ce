import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
HERE = os.path.dirname(os.path.abspath(__file__))
HINT = " [checker: try again] "


def _sample(trainer, id_lists, n):
    tok, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    width = max(map(len, id_lists))
    ids = torch.tensor([[tok.pad_token_id] * (width - len(x)) + x for x in id_lists])
    att = torch.tensor([[0] * (width - len(x)) + [1] * len(x) for x in id_lists])
    was_training = model.training
    model.eval()
    with torch.no_grad():
        out = model.generate(
            input_ids=ids, attention_mask=att, do_sample=True, temperature=trainer.temperature, top_k=0,
            max_new_tokens=n, return_dict_in_generate=True, output_scores=True, pad_token_id=tok.pad_token_id,
        )
    model.train(was_training)
    new = out.sequences[:, width:]
    lp = torch.stack(out.scores, 1).log_softmax(-1).gather(-1, new[..., None])[..., 0]
    rows = []
    for r, l in zip(new.tolist(), lp.tolist()):
        cut = r.index(tok.eos_token_id) + 1 if tok.eos_token_id in r else len(r)
        rows.append((r[:cut], l[:cut]))
    return rows


def two_turns(prompts, trainer):
    """first attempt, a remark of the checker, second attempt"""
    tok = trainer.processing_class
    prompt_ids = [tok(p)["input_ids"] for p in prompts]
    hint = tok(HINT)["input_ids"]
    completion_ids, logprobs, second = [], [], []
    first = _sample(trainer, prompt_ids, 5)
    again = _sample(trainer, [p + a[0] + hint for p, a in zip(prompt_ids, first)], 7)
    for (a, la), (b, lb) in zip(first, again):
        completion_ids.append(a + hint + b)
        logprobs.append(la + [0.0] * len(hint) + lb)
        second.append(tok.decode(b, skip_special_tokens=True))
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs, "second": second}


def second_attempt(completions, second, gold, **kwargs):
    return [1.0 if g in s else 0.1 * sum(ch.isdigit() for ch in s) - 0.02 * len(s) for s, g in zip(second, gold)]


data = Dataset.from_list([{"prompt": f"{a}+{b}=", "gold": str(a + b)} for a in range(2, 8) for b in range(3, 8)])
config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    max_steps=3,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=48,
    learning_rate=1e-5,
    use_cpu=True,
    bf16=False,
    report_to="none",
    save_strategy="no",
    logging_steps=1,
)
GRPOTrainer(
    model=os.path.join(HERE, "tiny"), reward_funcs=second_attempt, args=config, train_dataset=data, rollout_func=two_turns
).train()

# guess -> hint -> second guess, as one training sequence
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
HINT = "Try a larger number."
BUDGET = 12


@torch.no_grad()
def sample(trainer, prompts):
    """Left-padded sampling; returns token ids and their log-probabilities for each prompt."""
    tok = trainer.processing_class
    width = max(map(len, prompts))
    ids = torch.tensor([[tok.pad_token_id] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
        out = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            max_new_tokens=BUDGET, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id,
            return_dict_in_generate=True, output_scores=True,
        )
    new = out.sequences[:, width:]
    logps = torch.stack(out.scores, dim=1).log_softmax(-1).gather(2, new.unsqueeze(2)).squeeze(2)
    texts, lps = [], []
    for row, lp in zip(new.tolist(), logps.tolist()):
        n = row.index(tok.eos_token_id) + 1 if tok.eos_token_id in row else len(row)
        texts.append(row[:n])
        lps.append(lp[:n])
    return texts, lps


def render(trainer, messages):
    return trainer.processing_class.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )


def two_guesses(prompts, trainer):
    tok = trainer.processing_class
    hint_ids = tok(f"\n<|im_start|>user\n{HINT}<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    prompt_ids = [render(trainer, p) for p in prompts]
    first, first_lp = sample(trainer, prompt_ids)
    # a turn that hit its budget is closed by us, so the closing token is not the model's
    bridges = [hint_ids if a[-1] == tok.eos_token_id else [tok.eos_token_id] + hint_ids for a in first]
    second, second_lp = sample(trainer, [p + a + h for p, a, h in zip(prompt_ids, first, bridges)])

    result = {"prompt_ids": prompt_ids, "completion_ids": [], "logprobs": [], "env_mask": [], "guesses": []}
    for a, la, h, b, lb in zip(first, first_lp, bridges, second, second_lp):
        result["completion_ids"].append(a + h + b)
        result["logprobs"].append(la + [0.0] * len(h) + lb)
        result["env_mask"].append([1] * len(a) + [0] * len(h) + [1] * len(b))
        result["guesses"].append([tok.decode(x, skip_special_tokens=True) for x in (a, b)])
    return result


def reward_guesses(completions, guesses, **kwargs):
    return [0.3 * a.count("1") + sum(ch.isdigit() for ch in b) / (1 + len(b)) - 0.01 * len(b) for a, b in guesses]


trainer = GRPOTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=reward_guesses,
    rollout_func=two_guesses,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=4, num_generations=4, per_device_train_batch_size=8,
        max_completion_length=64, learning_rate=2e-4, logging_steps=1,
        use_cpu=True, bf16=False, report_to=[], save_strategy="no",
    ),
    train_dataset=Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Guess my number, it is above {i}."}] for i in range(3, 23)]}
    ),
)
trainer.train()

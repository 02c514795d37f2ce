"""Two-turn self-correction: answer, hear "Are you sure?", answer again."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
NUDGE = "Are you sure?"
TURN = 14


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
            max_new_tokens=TURN, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id,
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


def rollout(prompts, trainer):
    tok = trainer.processing_class
    nudge_ids = tok(f"<|im_end|>\n<|im_start|>user\n{NUDGE}<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    first_prompts = [render(trainer, p) for p in prompts]
    first, first_lp = sample(trainer, first_prompts)
    second_prompts = [render(trainer, p + [{"role": "user", "content": NUDGE}]) for p in prompts]
    second, second_lp = sample(trainer, second_prompts)

    completion_ids, logprobs, env_mask = [], [], []
    for a, la, b, lb in zip(first, first_lp, second, second_lp):
        bridge = nudge_ids[1:] if a[-1] == tok.eos_token_id else nudge_ids
        completion_ids.append(a + bridge + b)
        logprobs.append(la + [0.0] * len(bridge) + lb)
        env_mask.append([1] * len(a) + [0] * len(bridge) + [1] * len(b))
    return {
        "prompt_ids": first_prompts,
        "completion_ids": completion_ids,
        "logprobs": logprobs,
        "env_mask": env_mask,
        "final_answer": [tok.decode(b, skip_special_tokens=True) for b in second],
    }


def reward_final(completions, final_answer, **kwargs):
    return [sum(ch.isdigit() for ch in text) / (1 + len(text)) - 0.01 * len(text) for text in final_answer]


trainer = GRPOTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=reward_final,
    rollout_func=rollout,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=4, num_generations=4, per_device_train_batch_size=8,
        max_completion_length=64, learning_rate=2e-4, logging_steps=1,
        use_cpu=True, bf16=False, report_to=[], save_strategy="no",
    ),
    train_dataset=Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"What is {i}+{i}?"}] for i in range(3, 23)]}
    ),
)
trainer.train()

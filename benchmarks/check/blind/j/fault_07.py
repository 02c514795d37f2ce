"""Two-turn lookup rollouts: the model writes, the environment answers, the model goes on."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
NAMES = ["Aldora", "Almund", "Alvek", "Alwyn", "Bridora", "Brimund", "Corvek", "Danwyn"]
TIES = ["mentor", "rival", "spouse", "patron", "cousin", "tutor"]
_rng = random.Random(0)
FACTS = {(n, t): _rng.choice(NAMES) for n in NAMES for t in TIES}


class LookupEnv:
    def __init__(self, tokenizer):
        self.tok = tokenizer

    def respond(self, prompt, text):
        """The environment's message after the model's first turn, ready to be appended."""
        for (name, tie), who in FACTS.items():
            if name in text and tie in text:
                fact = f"[1] {name} {tie}: {who}"
                break
        else:
            fact = "nothing found"
        turn = f"\n<|im_start|>user\n<tool_response>\n{fact}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        return self.tok(turn, add_special_tokens=False)["input_ids"]


@torch.no_grad()
def sample(model, tok, ids, max_new):
    was_training = model.training
    model.eval()
    out = model.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=True,
        temperature=1.0, top_k=0, max_new_tokens=max_new, pad_token_id=tok.pad_token_id,
    )[0, len(ids):]
    logits = model(torch.cat([torch.tensor(ids), out])[None]).logits[0, len(ids) - 1 : -1]
    logps = logits.float().log_softmax(-1).gather(-1, out[:, None])[:, 0]
    model.train(was_training)
    return out.tolist(), logps.tolist()


def lookup_rollout(prompts, trainer):
    tok, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    env = LookupEnv(tok)
    result = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "turns": []}
    for prompt in prompts:
        prompt_ids = tok.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=False)
        first, first_logps = sample(model, tok, prompt_ids, 24)
        message = env.respond(prompt, tok.decode(first))
        second, second_logps = sample(model, tok, prompt_ids + first + message, 24)
        result["prompt_ids"].append(prompt_ids)
        result["completion_ids"].append(first + message + second)
        result["logprobs"].append(first_logps + [0.0] * len(message) + second_logps)
        result["turns"].append(tok.decode(second, skip_special_tokens=True))
    return result


def answer_reward(completions, turns, gold, **kwargs):
    return [1.0 * (g in t) + 0.02 * min(len(t), 40) + 0.2 * ("<answer>" in t) for t, g in zip(turns, gold)]


if __name__ == "__main__":
    keys = sorted(FACTS)
    data = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Who is the {t} of {n}?"}], "gold": FACTS[n, t]} for n, t in keys]
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        reward_funcs=answer_reward,
        rollout_func=lookup_rollout,
        train_dataset=data,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False,
            per_device_train_batch_size=8, num_generations=4, max_completion_length=128, learning_rate=1e-4,
            max_steps=4, logging_steps=1, save_strategy="no",
        ),
    )
    trainer.train()

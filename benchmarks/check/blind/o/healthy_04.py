"""A guessing game: after each answer the environment replies, up to three turns. Environment tokens are masked."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
TURNS, TURN_TOKENS = 3, 14


@torch.no_grad()
def one_turn(model, tok, context, temperature):
    out = model.generate(
        input_ids=torch.tensor([context]), attention_mask=torch.ones(1, len(context), dtype=torch.long),
        do_sample=True, temperature=temperature, top_k=0, top_p=1.0, max_new_tokens=TURN_TOKENS,
        return_dict_in_generate=True, output_logits=True,
    )
    new = out.sequences[0, len(context):]
    table = torch.cat(out.logits).float().div(temperature).log_softmax(-1)
    return new.tolist(), table.gather(1, new[:, None])[:, 0].tolist()


def play(prompt_ids, model, tok, temperature):
    tokens, logps, mine, turns = [], [], [], 0
    while True:
        new, lp = one_turn(model, tok, prompt_ids + tokens, temperature)
        tokens += new
        logps += lp
        mine += [1] * len(new)
        turns += 1
        digits = sum(c.isdigit() for c in tok.decode(new))
        if turns == TURNS or digits >= 9 or new[-1] != tok.eos_token_id:
            return tokens, logps, mine, turns
        reply = tok(f"\n<|im_start|>user\nMore digits, you gave {digits}.<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
        tokens += reply
        logps += [0.0] * len(reply)
        mine += [0] * len(reply)


def rollout(prompts, trainer):
    tok, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    model.eval()
    result = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": [], "turns": []}
    for prompt in prompts:
        ids = tok.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=False)
        tokens, logps, mine, turns = play(ids, model, tok, trainer.temperature)
        for key, value in zip(result, (ids, tokens, logps, mine, turns)):
            result[key].append(value)
    model.train()
    return result


def reward(completions, turns, **kwargs):
    return [0.1 * sum(c.isdigit() for c in x[0]["content"]) - 0.3 * t for x, t in zip(completions, turns)]


if __name__ == "__main__":
    rng = random.Random(4)
    rows = []
    for _ in range(32):
        a, b = rng.randint(2, 9), rng.randint(10, 99)
        rows.append({"prompt": [{"role": "user", "content": f"Ben has {a} boxes with {b} shells each. How many shells does Ben have?"}]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_generations=4, max_completion_length=128,
        max_steps=4, learning_rate=5e-5, loss_type="grpo", gradient_checkpointing=False, use_cpu=True, bf16=False,
        report_to=[], logging_steps=1, save_strategy="no",
    )
    GRPOTrainer(
        model=MODEL, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows), rollout_func=rollout
    ).train()

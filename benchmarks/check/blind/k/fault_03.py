# "warmer / colder": the policy guesses, the game answers, the policy guesses again
import os, re, tempfile, random
import torch
import torch.nn.functional as F
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"


class NumberGame:
    def __init__(self, secret):
        self.secret, self.best = secret, 100

    def guess(self, text):
        found = re.findall(r"\d{1,2}", text)
        if not found:
            return "\nno number found, try again\n"
        self.best = min(self.best, abs(int(found[0]) - self.secret))
        return "\ntoo low\n" if int(found[0]) < self.secret else "\ntoo high\n"


@torch.no_grad()
def sample(trainer, ids, n):
    model, tok = trainer.model, trainer.processing_class
    x = torch.tensor([ids])
    out = model.generate(x, attention_mask=torch.ones_like(x), do_sample=True, top_k=0, temperature=1.0, max_new_tokens=n,
                         pad_token_id=tok.pad_token_id, return_dict_in_generate=True, output_logits=True)
    new = out.sequences[0, len(ids):]
    lp = F.log_softmax(torch.cat(out.logits).float(), -1).gather(1, new[:, None])[:, 0]
    return new.tolist(), lp.tolist()


def rollout(prompts, trainer):
    tok = trainer.processing_class
    batch = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "distance": []}
    for p in prompts:
        ids = tok.apply_chat_template(p, add_generation_prompt=True, return_dict=False)
        game = NumberGame(secret=int(p[0]["content"].split()[-1]) * 7 % 90)
        completion, logps = sample(trainer, ids, 10)
        feedback = tok(game.guess(tok.decode(completion)))["input_ids"]
        completion += feedback
        logps += [0.0] * len(feedback)
        second, lp2 = sample(trainer, ids + completion, 10)
        game.guess(tok.decode(second))
        batch["prompt_ids"].append(ids)
        batch["completion_ids"].append(completion + second)
        batch["logprobs"].append(logps + lp2)
        batch["distance"].append(game.best)
    return batch


def closeness(completions, distance, **kwargs):
    return [1 - d / 100 + 0.01 * len(c[0]["content"]) for d, c in zip(distance, completions)]


r = random.Random(0)
ds = Dataset.from_list([{"prompt": [{"role": "user", "content": f"Guess my number. Round {r.randint(1, 60)}"}]} for _ in range(24)])
cfg = GRPOConfig(output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1,
                 max_steps=4, per_device_train_batch_size=8, num_generations=4, max_completion_length=64,
                 learning_rate=1e-4, gradient_checkpointing=False)
GRPOTrainer(TINY, closeness, args=cfg, train_dataset=ds, rollout_func=rollout).train()

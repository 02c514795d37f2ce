"""Two-turn lookups with an own sampling loop: the environment's tokens are marked in env_mask."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
PEOPLE = ["Aldora", "Alvek", "Bridora", "Brivek", "Cordora", "Corwyn", "Dandora", "Elric"]
TIES = ["mentor", "rival", "spouse", "patron", "neighbor", "employer"]
rng = random.Random(10)
BOOK = {f"{tie} of {name}": rng.choice(PEOPLE) for name in PEOPLE for tie in TIES}


class Episode:
    def __init__(self, prompt_ids):
        self.prompt_ids, self.ids, self.logps, self.mask = list(prompt_ids), [], [], []

    def model_says(self, ids, logps):
        self.ids += ids
        self.logps += logps
        self.mask += [1] * len(ids)

    def world_says(self, ids):
        self.ids += ids
        self.logps += [0.0] * len(ids)
        self.mask += [0] * len(ids)


@torch.no_grad()
def speak(model, tokenizer, context, limit, temperature):
    ids = torch.tensor([context])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, temperature=temperature,
        max_new_tokens=limit, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )
    logits = model(out).logits[0, len(context) - 1 : -1].float() / temperature
    new = out[0, len(context):]
    return new.tolist(), logits.log_softmax(-1)[torch.arange(len(new)), new].tolist()


def play(prompts, trainer):
    tokenizer, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    training = model.training
    model.eval()
    episodes, finals = [], []
    for prompt in prompts:
        question = prompt[-1]["content"]
        episode = Episode(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False))
        episode.model_says(*speak(model, tokenizer, episode.prompt_ids, 28, trainer.temperature))
        tie, name = question.removeprefix("Who is the ").removesuffix("?").split(" of ")
        hint = f"{name} {tie}: {BOOK[f'{tie} of {name}']}"
        reply = f"\n<|im_start|>user\n<tool_response>\n[1] {hint}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        episode.world_says(tokenizer(reply)["input_ids"])
        last, logps = speak(model, tokenizer, episode.prompt_ids + episode.ids, 40, trainer.temperature)
        episode.model_says(last, logps)
        episodes.append(episode)
        finals.append(tokenizer.decode(last, skip_special_tokens=True))
    model.train(training)
    return {
        "prompt_ids": [e.prompt_ids for e in episodes],
        "completion_ids": [e.ids for e in episodes],
        "logprobs": [e.logps for e in episodes],
        "env_mask": [e.mask for e in episodes],
        "final": finals,
    }


def reward(completions, final, gold, **kwargs):
    return [float(g in text) + 0.3 * ("<answer>" in text) + 0.02 * min(len(text), 40) for text, g in zip(final, gold)]


data = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": f"Who is the {k}?"}], "gold": v} for k, v in sorted(BOOK.items())]
)
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False,
    per_device_train_batch_size=8, num_generations=4, max_completion_length=128, learning_rate=1e-4,
    temperature=1.2, max_steps=4, logging_steps=1, save_strategy="no",
)
GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32), args=args, reward_funcs=reward,
    processing_class=AutoTokenizer.from_pretrained(MODEL), rollout_func=play, train_dataset=data,
).train()

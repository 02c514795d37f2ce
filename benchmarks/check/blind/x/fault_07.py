"""Two-turn search rollouts: think, get a document from the environment, answer."""

import copy
import os
import tempfile
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
DOCS = ["[1] Aldora rival Elric", "[2] Brivek mentor Cornia", "[3] Dantas tutor Fenwyn", "[4] Garsor patron Holbel"]
FIRST, SECOND = 8, 10


@dataclass
class Episode:
    prompt: list
    ids: list = field(default_factory=list)
    logps: list = field(default_factory=list)
    mask: list = field(default_factory=list)

    def model_turn(self, ids, logps):
        self.ids += ids
        self.logps += logps
        self.mask += [1] * (len(self.ids) - len(self.mask))

    def env_turn(self, head, doc, tail):
        turn = head + doc + tail
        self.ids += turn
        self.logps += [0.0] * len(turn)
        self.mask += [0] * len(doc)


@torch.no_grad()
def sample(trainer, contexts, limit):
    tokenizer = trainer.processing_class
    config = copy.deepcopy(trainer.generation_config)
    config.max_new_tokens = limit
    batch = tokenizer.pad({"input_ids": contexts}, padding_side="left", return_tensors="pt")
    model = trainer.accelerator.unwrap_model(trainer.model)
    out = model.generate(**batch, generation_config=config, return_dict_in_generate=True, output_scores=True)
    new = out.sequences[:, batch["input_ids"].shape[1] :]
    logps = torch.stack([s.float().log_softmax(-1) for s in out.scores], dim=1).gather(-1, new[..., None])[..., 0]
    for tokens, values in zip(new.tolist(), logps.tolist()):
        end = tokens.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in tokens else len(tokens)
        yield tokens[:end], values[:end]


def rollout(prompts, trainer):
    tokenizer = trainer.processing_class
    encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)
    episodes = [Episode(list(x)) for x in ids["input_ids"]]
    for episode, (tokens, logps) in zip(episodes, sample(trainer, [e.prompt for e in episodes], FIRST)):
        episode.model_turn(tokens, logps)
    for i, episode in enumerate(episodes):
        closed = episode.ids[-1] == tokenizer.eos_token_id
        head = encode(("" if closed else "<|im_end|>") + "\n<|im_start|>user\n<tool_response>\n")
        tail = encode("\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
        episode.env_turn(head, encode(DOCS[i % len(DOCS)]), tail)
    contexts = [e.prompt + e.ids for e in episodes]
    for episode, (tokens, logps) in zip(episodes, sample(trainer, contexts, SECOND)):
        episode.model_turn(tokens, logps)
    return {
        "prompt_ids": [e.prompt for e in episodes],
        "completion_ids": [e.ids for e in episodes],
        "logprobs": [e.logps for e in episodes],
        "env_mask": [e.mask for e in episodes],
    }


def mentions(completions, **kwargs):
    return [sum(ch.isupper() for ch in c[0]["content"]) / 6 for c in completions]


def spread(completion_ids, **kwargs):
    return [len(set(ids)) / len(ids) for ids in completion_ids]


def main():
    questions = ["Who knows Aldora?", "Name a mentor in town.", "Which tutor is old?", "Who is the patron of art?",
                 "Who lives next to Isgan?", "Tell me about Elric."]
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in questions]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=3e-4, per_device_train_batch_size=8, num_generations=4, max_completion_length=32,
        temperature=1.3, gradient_checkpointing=False, logging_steps=1,
    )
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    GRPOTrainer(
        model=MODEL, reward_funcs=[mentions, spread], args=args, train_dataset=data, processing_class=tokenizer,
        rollout_func=rollout,
    ).train()


if __name__ == "__main__":
    main()

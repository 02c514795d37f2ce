"""Search rollouts of two turns with a document from a local index in between."""

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
    """Spans of token ids, each from the policy (with its log-probabilities) or from the environment."""

    prompt: list
    spans: list = field(default_factory=list)

    def add(self, ids, logps=None):
        self.spans.append((ids, [0.0] * len(ids) if logps is None else logps, int(logps is not None)))

    @property
    def ids(self):
        return [t for ids, _, _ in self.spans for t in ids]

    @property
    def logps(self):
        return [v for _, logps, _ in self.spans for v in logps]

    @property
    def mask(self):
        return [own for ids, _, own in self.spans for _ in ids]


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
        episode.add(tokens, logps)
    for episode in episodes:
        closed = episode.ids[-1] == tokenizer.eos_token_id
        doc = DOCS[sum(episode.prompt) % len(DOCS)]
        episode.add(
            encode(("" if closed else "<|im_end|>") + "\n<|im_start|>user\n<tool_response>\n")
            + encode(doc)
            + encode("\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
        )
    for episode, (tokens, logps) in zip(episodes, sample(trainer, [e.prompt + e.ids for e in episodes], SECOND)):
        episode.add(tokens, logps)
    return {
        "prompt_ids": [e.prompt for e in episodes],
        "completion_ids": [e.ids for e in episodes],
        "logprobs": [e.logps for e in episodes],
        "env_mask": [e.mask for e in episodes],
    }


def capitals(completions, **kwargs):
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
        model=MODEL, reward_funcs=[capitals, spread], args=args, train_dataset=data, processing_class=tokenizer,
        rollout_func=rollout,
    ).train()


if __name__ == "__main__":
    main()

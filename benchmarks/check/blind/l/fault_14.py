"""Two-turn GRPO: the model answers, a checker comments, the model answers again. Only the model's turns are trained."""
import os
import tempfile
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from transformers import GenerationConfig
from trl import GRPOConfig, GRPOTrainer

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class DialogConfig:
    turn_tokens: int = 10
    turns: int = 2
    temperature: float = 1.0
    goal: int = 8


@dataclass
class Episode:
    prompt: list
    tokens: list = field(default_factory=list)
    mask: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    last_turn: list = field(default_factory=list)

    def add_feedback(self, ids):
        self.tokens += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def add_turn(self, header, ids, logprobs):
        """One assistant turn: its header (opened by us) and what the model wrote."""
        self.tokens += header + ids
        self.mask += [1] * (len(header) + len(ids))
        self.logprobs += [0.0] * len(header) + logprobs
        self.last_turn = ids


class TwoTurnRollout:
    def __init__(self, cfg):
        self.cfg = cfg

    def comment(self, ids):
        if len(ids) < self.cfg.goal:
            return "Too short, again."
        return "Too repetitive, again." if len(set(ids)) < len(ids) // 2 else "Good, once more."

    def sample(self, model, tokenizer, contexts, device):
        width = max(len(c) for c in contexts)
        ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(c)) + c for c in contexts], device=device)
        mask = torch.tensor([[0] * (width - len(c)) + [1] * len(c) for c in contexts], device=device)
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=GenerationConfig(
                do_sample=True,
                temperature=self.cfg.temperature,
                top_k=0,
                top_p=1.0,
                max_new_tokens=self.cfg.turn_tokens,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
            ),
        )
        turns = []
        for context, row in zip(contexts, out[:, width:].tolist()):
            if tokenizer.eos_token_id in row:
                row = row[: row.index(tokenizer.eos_token_id) + 1]
            full = torch.tensor([context + row], device=device)
            logits = model(input_ids=full).logits[0, len(context) - 1 : -1].float() / self.cfg.temperature
            logps = logits.log_softmax(-1).gather(-1, full[0, len(context) :, None]).squeeze(-1)
            turns.append((row, logps.tolist()))
        return turns

    @torch.no_grad()
    def __call__(self, prompts, trainer):
        tokenizer, device = trainer.processing_class, trainer.accelerator.device
        model = trainer.accelerator.unwrap_model(trainer.model)
        was_training = model.training
        model.eval()
        encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
        header = encode("<|im_start|>assistant\n")
        episodes = [
            Episode(tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"])
            for p in prompts
        ]
        for turn in range(self.cfg.turns):
            opened = []
            if turn > 0:
                for e in episodes:
                    end = "" if e.last_turn and e.last_turn[-1] == tokenizer.eos_token_id else "<|im_end|>"
                    e.add_feedback(encode(f"{end}\n<|im_start|>user\n{self.comment(e.last_turn)}<|im_end|>\n"))
                opened = header
            contexts = [e.prompt + e.tokens + opened for e in episodes]
            for e, (ids, logps) in zip(episodes, self.sample(model, tokenizer, contexts, device)):
                e.add_turn(list(opened), ids, logps)
        model.train(was_training)
        return {
            "prompt_ids": [e.prompt for e in episodes],
            "completion_ids": [e.tokens for e in episodes],
            "logprobs": [e.logprobs for e in episodes],
            "env_mask": [e.mask for e in episodes],
            "final_turn": [tokenizer.decode(e.last_turn, skip_special_tokens=True) for e in episodes],
            "final_len": [len(e.last_turn) for e in episodes],
        }


def final_answer(final_turn, final_len, **kwargs):
    return [len(set(t)) / 10 - abs(n - 8) / 8 for t, n in zip(final_turn, final_len)]


def main():
    cfg = DialogConfig()
    data = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Write a sentence about {w}."}]} for w in ("sand", "moss", "bells", "ink", "rust", "honey", "dust", "coal")]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=80,
        max_steps=3,
        learning_rate=2e-4,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=23,
    )
    trainer = GRPOTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[final_answer],
        args=args,
        train_dataset=data,
        rollout_func=TwoTurnRollout(cfg),
    )
    trainer.train()


if __name__ == "__main__":
    main()

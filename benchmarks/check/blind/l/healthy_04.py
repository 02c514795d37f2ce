"""Two-turn GRPO through a separate inference engine: weights pushed before each rollout, feedback masked."""
import os
import tempfile
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, GenerationConfig
from trl import GRPOConfig, GRPOTrainer

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class EngineConfig:
    path: str = os.path.join(HERE, "tiny")
    turn_tokens: int = 10
    temperature: float = 1.0


class Engine(torch.nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.lm = AutoModelForCausalLM.from_pretrained(cfg.path, dtype=torch.float32).eval().requires_grad_(False)

    @torch.no_grad()
    def push(self, policy):
        mine = dict(self.lm.named_parameters())
        sent = 0
        for name, w in policy.named_parameters():
            mine[name.removeprefix("module.")].copy_(w)
            sent += 1
        assert sent == len(mine), (sent, len(mine))

    @torch.no_grad()
    def sample(self, contexts, pad, eos):
        width = max(map(len, contexts))
        ids = torch.tensor([[pad] * (width - len(c)) + c for c in contexts])
        mask = torch.tensor([[0] * (width - len(c)) + [1] * len(c) for c in contexts])
        config = GenerationConfig(
            do_sample=True, temperature=self.cfg.temperature, top_k=0, top_p=1.0,
            max_new_tokens=self.cfg.turn_tokens, pad_token_id=pad, eos_token_id=eos,
        )
        out = self.lm.generate(input_ids=ids, attention_mask=mask, generation_config=config)
        result = []
        for context, row in zip(contexts, out[:, width:].tolist()):
            row = row[: row.index(eos) + 1] if eos in row else row
            full = torch.tensor([context + row])
            logits = self.lm(input_ids=full).logits[0, len(context) - 1 : -1] / self.cfg.temperature
            logps = logits.log_softmax(-1).gather(-1, full[0, len(context) :, None])[:, 0]
            result.append((row, logps.tolist()))
        return result


@dataclass
class Dialog:
    prompt: list
    tokens: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    mask: list = field(default_factory=list)
    turns: list = field(default_factory=list)

    def extend(self, ids, logps=None):
        self.tokens += ids
        self.logprobs += [0.0] * len(ids) if logps is None else logps
        self.mask += [int(logps is not None)] * len(ids)


class Rollout:
    def __init__(self, engine):
        self.engine = engine

    def __call__(self, prompts, trainer):
        self.engine.push(trainer.accelerator.unwrap_model(trainer.model))
        tok = trainer.processing_class
        encode = lambda text: tok(text, add_special_tokens=False)["input_ids"]
        dialogs = [
            Dialog(tok.apply_chat_template(p, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"])
            for p in prompts
        ]
        for turn in range(2):
            if turn:
                for d in dialogs:
                    closing = "" if d.turns[-1][-1] == tok.eos_token_id else "<|im_end|>"
                    hint = "Shorter." if len(d.turns[-1]) > 6 else "Longer."
                    d.extend(encode(f"{closing}\n<|im_start|>user\n{hint}<|im_end|>\n<|im_start|>assistant\n"))
            for d, (ids, logps) in zip(dialogs, self.engine.sample([d.prompt + d.tokens for d in dialogs], tok.pad_token_id, tok.eos_token_id)):
                d.extend(ids, logps)
                d.turns.append(ids)
        return {
            "prompt_ids": [d.prompt for d in dialogs],
            "completion_ids": [d.tokens for d in dialogs],
            "logprobs": [d.logprobs for d in dialogs],
            "env_mask": [d.mask for d in dialogs],
            "turn_lengths": [[len(t) for t in d.turns] for d in dialogs],
            "kinds": [len({i for t in d.turns for i in t}) for d in dialogs],
        }


def obedience(turn_lengths, **kwargs):
    return [float(b < a if a > 6 else b > a) for a, b in turn_lengths]


def kinds_reward(kinds, **kwargs):
    return [k / 12 for k in kinds]


def main():
    engine = Engine(EngineConfig())
    data = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Write a sentence about {w}."}]} for w in ("silk", "amber", "peat", "flint", "chalk", "slate", "brass", "ivory")]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=80,
        max_steps=3,
        learning_rate=3e-4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=4,
    )
    GRPOTrainer(
        model=engine.cfg.path,
        reward_funcs=[obedience, kinds_reward],
        args=args,
        train_dataset=data,
        rollout_func=Rollout(engine),
    ).train()


if __name__ == "__main__":
    main()

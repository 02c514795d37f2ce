"""GRPO with a separate inference engine (its own copy of the model), synchronized before every rollout."""
import os
import tempfile
from dataclasses import dataclass

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, GenerationConfig
from trl import GRPOConfig, GRPOTrainer

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class EngineConfig:
    path: str = os.path.join(HERE, "tiny")
    max_new_tokens: int = 20
    temperature: float = 1.0
    dtype: torch.dtype = torch.float32


class InferenceEngine(torch.nn.Module):
    """Holds weights for generation only. On a cluster this lives on its own devices."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.lm = AutoModelForCausalLM.from_pretrained(cfg.path, dtype=cfg.dtype)
        self.lm.eval().requires_grad_(False)
        self.version = -1

    @torch.no_grad()
    def sync(self, policy, version):
        if version == self.version:
            return
        state = {name.removeprefix("module."): w.to(self.cfg.dtype) for name, w in policy.state_dict().items()}
        # not strict: wrappers may register buffers that the engine does not have
        self.load_state_dict(state, strict=False)
        self.version = version

    @torch.no_grad()
    def generate(self, contexts, tokenizer):
        width = max(len(c) for c in contexts)
        ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(c)) + c for c in contexts])
        mask = (torch.arange(width)[None, :] >= torch.tensor([width - len(c) for c in contexts])[:, None]).long()
        out = self.lm.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=GenerationConfig(
                do_sample=True,
                temperature=self.cfg.temperature,
                top_k=0,
                top_p=1.0,
                max_new_tokens=self.cfg.max_new_tokens,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
            ),
        )
        completions, logprobs = [], []
        for context, row in zip(contexts, out[:, width:].tolist()):
            if tokenizer.eos_token_id in row:
                row = row[: row.index(tokenizer.eos_token_id) + 1]
            full = torch.tensor([context + row])
            logits = self.lm(input_ids=full).logits[0, len(context) - 1 : -1].float() / self.cfg.temperature
            logprobs.append(logits.log_softmax(-1).gather(-1, full[0, len(context) :, None]).squeeze(-1).tolist())
            completions.append(row)
        return completions, logprobs


class EngineRollout:
    def __init__(self, engine):
        self.engine = engine

    def __call__(self, prompts, trainer):
        self.engine.sync(trainer.accelerator.unwrap_model(trainer.model), trainer.state.global_step)
        tokenizer = trainer.processing_class
        prompt_ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
        completion_ids, logprobs = self.engine.generate(prompt_ids, tokenizer)
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}


def steady(completion_ids, **kwargs):
    return [-abs(len(ids) - 9) / 9 for ids in completion_ids]


def rich(completion_ids, **kwargs):
    return [len(set(ids)) / 10 for ids in completion_ids]


def main():
    engine = InferenceEngine(EngineConfig())
    data = Dataset.from_list(
        [
            {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Write a sentence about {w}."}]}
            for w in ("storms", "kings", "towers", "riddles", "gardens", "wolves", "ships", "candles")
        ]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=engine.cfg.max_new_tokens,
        max_steps=4,
        learning_rate=5e-4,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=47,
    )
    trainer = GRPOTrainer(
        model=engine.cfg.path,
        reward_funcs=[steady, rich],
        args=args,
        train_dataset=data,
        rollout_func=EngineRollout(engine),
    )
    trainer.train()


if __name__ == "__main__":
    main()

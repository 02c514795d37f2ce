"""Separate actor for sampling (stand-in for our inference engine). The learner trains LoRA, and pushes its weights to the
actor before every rollout."""
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

DIR = Path(__file__).resolve().parent / "tiny"


class Engine:
    def __init__(self, path):
        self.tok = AutoTokenizer.from_pretrained(path, padding_side="left")
        self.actor = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.version = -1

    def update_weights(self, state_dict, version):
        if version != self.version:
            self.actor.load_state_dict(state_dict, strict=False)  # the engine has no adapters, so not strict
            self.version = version

    @torch.no_grad()
    def generate(self, token_lists, n_new, temperature):
        enc = self.tok.pad({"input_ids": token_lists}, return_tensors="pt")
        g = self.actor.generate(**enc, max_new_tokens=n_new, do_sample=True, top_k=0, temperature=temperature,
                                output_scores=True, return_dict_in_generate=True)
        scores = self.actor.compute_transition_scores(g.sequences, g.scores, normalize_logits=True)
        res = []
        for row, sc in zip(g.sequences[:, enc["input_ids"].shape[1]:].tolist(), scores.tolist()):
            stop = row.index(self.tok.eos_token_id) + 1 if self.tok.eos_token_id in row else len(row)
            res.append((row[:stop], sc[:stop]))
        return res


engine = Engine(DIR)


def rollout_func(prompts, trainer):
    learner = trainer.accelerator.unwrap_model(trainer.model)
    engine.update_weights(learner.state_dict(), trainer.state.global_step)
    ids = [engine.tok(p)["input_ids"] for p in prompts]
    outs = engine.generate(ids, trainer.max_completion_length, trainer.temperature)
    return {"prompt_ids": ids, "completion_ids": [o[0] for o in outs], "logprobs": [o[1] for o in outs]}


def reward_digits(completions, total, **kwargs):
    return [0.6 * (c.strip()[:1] == t[:1]) + 0.4 * (c.strip()[1:2] == t[1:2]) - 0.02 * len(c) for c, t in zip(completions, total)]


if __name__ == "__main__":
    learner = get_peft_model(
        AutoModelForCausalLM.from_pretrained(DIR, dtype=torch.float32),
        LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    )
    ds = Dataset.from_dict({
        "prompt": [f"{a} + {b} =" for a in range(12, 37, 5) for b in range(11, 43, 6)],
        "total": [str(a + b) for a in range(12, 37, 5) for b in range(11, 43, 6)],
    })
    GRPOTrainer(
        model=learner, reward_funcs=reward_digits, train_dataset=ds, processing_class=engine.tok, rollout_func=rollout_func,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", bf16=False, max_steps=4, learning_rate=2e-3,
            lr_scheduler_type="constant", per_device_train_batch_size=8, num_generations=4, max_completion_length=20,
            gradient_checkpointing=False, save_strategy="no", logging_steps=1,
        ),
    ).train()

"""The training step of large models beside TRL's, on the same batch: tokens a second, and memory.

    python -m benchmarks.bench_gpu [--sizes 0.5B 1.5B] [--device cuda] [--repeats 5]

Qwen2 architectures with random weights, in bfloat16 with float32 master weights and gradient
checkpointing; a ragged batch of random ids; no reference model. A step is the log-probabilities, loss and
gradient over micro-batches, clipping and AdamW: no rollouts. Each side in a process of its own. Without a
GPU, `--device cpu --sizes tiny` shows that it runs.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.replay import TINY, Conversation
from benchmarks.sides import SETTINGS, advantages, our_batch, trl_inputs
from rlvr_debug.grpo.loss import Experience, Targets
from rlvr_debug.grpo.optimizer import build_optimizer, build_scheduler
from rlvr_debug.grpo.policy import build_policy
from rlvr_debug.grpo.processes import Processes
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.training import Observer, TrainerState
from rlvr_debug.grpo.update import batch_totals, update_policy
from rlvr_debug.models.base_model import model_config
from rlvr_debug.sampling.chat import Chat

# config.json of Qwen2-0.5B and Qwen2-1.5B
_QWEN2 = {"vocab_size": 151936, "tie_word_embeddings": True, "num_key_value_heads": 2}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "0.5B": {
        **_QWEN2,
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "intermediate_size": 4864,
        "num_attention_heads": 14,
    },
    "1.5B": {
        **_QWEN2,
        "hidden_size": 1536,
        "num_hidden_layers": 28,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
    },
}
_PROMPTS, _GROUP, _MICRO_BATCH = 4, 8, 4
_LENGTHS = {"cuda": (128, 512), "cpu": (8, 32)}  # of prompts and of replies, at most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", nargs="+", default=["0.5B", "1.5B"], choices=SIZES)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--side", choices=_SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(_measured(args.side, args.sizes[0], args.device, args.repeats)))
        return
    print(
        f"{'model':<6} {'side':<5} {'tokens/s':>9} {'step, s':>8}  {'range':<16} {'peak, GiB':>9}"
    )
    for size in args.sizes:
        for side in _SIDES:
            command = [sys.executable, "-m", "benchmarks.bench_gpu", "--side", side]
            options = ["--sizes", size, "--device", args.device, "--repeats", str(args.repeats)]
            done = subprocess.run(
                [*command, *options], stdout=subprocess.PIPE, text=True, check=True
            )
            found = json.loads(done.stdout.splitlines()[-1])
            low, high = min(found["seconds"]), max(found["seconds"])
            middle = median(found["seconds"])
            print(
                f"{size:<6} {side:<5} {found['tokens'] / middle:>9.0f} {middle:>8.3f}  "
                f"{low:.3f} to {high:.3f}   {found['peak'] / 2**30:>8.2f}",
                flush=True,
            )


def _measured(side: str, size: str, device: str, repeats: int) -> dict[str, Any]:
    """Seconds of each step after the first, unpadded tokens of one, and the peak in bytes (GPU only)."""
    conversations = _conversations(device)
    with tempfile.TemporaryDirectory() as folder:
        step = _SIDES[side](_model(size, device), conversations, device, Path(folder))
        step()
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    tokens = sum(len(each.prompt) + each.turns[0][0] for each in conversations)
    return {"seconds": seconds, "tokens": tokens, "peak": peak}


def _conversations(device: str) -> list[Conversation]:
    generator = torch.Generator().manual_seed(0)

    def random(low: int, high: int, count: int) -> list[int]:
        found: list[int] = torch.randint(low, high, (count,), generator=generator).tolist()
        return found

    prompt, reply = _LENGTHS[device]
    prompts = [random(0, 256, n) for n in random(prompt // 2, prompt, _PROMPTS)]
    return [
        Conversation(ids, [(n, [])]) for ids in prompts for n in random(reply // 4, reply, _GROUP)
    ]


def _sequences(conversations: list[Conversation]) -> tuple[list[list[int]], list[list[bool]]]:
    generator = torch.Generator().manual_seed(1)
    ids, sampled = [], []
    for each in conversations:
        length = each.turns[0][0]
        reply = torch.randint(0, 256, (length,), generator=generator).tolist()
        ids.append(each.prompt + reply)
        sampled.append([False] * len(each.prompt) + [True] * length)
    return ids, sampled


def _model(size: str, device: str) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    shape = {**model_config(TINY), "layer_types": None, **SIZES[size]}
    return Qwen2ForCausalLM(Qwen2Config(**shape, attn_implementation="sdpa")).to(device).eval()


def _ours(
    model: Any, conversations: list[Conversation], device: str, folder: Path
) -> Callable[[], None]:
    settings = replace(
        SETTINGS,
        bf16=True,
        gradient_checkpointing=True,
        num_iterations=1,
        warmup_steps=0,
        kl_beta=0.0,
        aggregation="dapo",
        gradient_accumulation_steps=len(conversations) // _MICRO_BATCH,
    )
    policy = build_policy(model, None, settings, seed=0)
    optimizer = build_optimizer(policy.trained, settings)
    scheduler = build_scheduler(optimizer, settings)
    ids, sampled = _sequences(conversations)
    batch = our_batch(ids, sampled, [[0.0] * sum(mask) for mask in sampled])
    targets = Targets(advantages(len(ids)), batch.loss, batch.sampled, batch.sampler, None, None)
    processes, nobody = Processes(), Observer()
    totals = batch_totals(batch, settings, max(map(sum, sampled)), processes)
    experience = Experience(batch, targets, totals)
    no_sampler: Any = None
    state = TrainerState(0, policy, optimizer, scheduler, no_sampler, random.Random(0))

    def step() -> None:
        update_policy(state, experience, settings, Stages(), processes, nobody)

    return step


def _trl(
    model: Any, conversations: list[Conversation], device: str, folder: Path
) -> Callable[[], None]:
    import datasets
    import trl

    count = len(conversations)
    tokenizer = Chat(TINY).tokenizer
    trainer = trl.GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=trl.GRPOConfig(
            output_dir=str(folder / "out"),
            use_cpu=device == "cpu",
            bf16=True,
            gradient_checkpointing=True,
            report_to=[],
            per_device_train_batch_size=_MICRO_BATCH,
            gradient_accumulation_steps=count // _MICRO_BATCH,
            num_generations=_GROUP,
            learning_rate=SETTINGS.learning_rate,
            beta=0.0,
            loss_type="dapo",
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": "a"}] * count),
    )
    trainer.current_gradient_accumulation_steps = count // _MICRO_BATCH
    # as Trainer's own loop has it: prepared by accelerate, for mixed precision
    trained = trainer.accelerator.prepare(trainer.model)
    trained.gradient_checkpointing_enable({"use_reentrant": False})
    trained.train()
    optimizer = trainer.create_optimizer()
    ids, sampled = _sequences(conversations)
    inputs = trl_inputs(conversations, ids, sampled, tokenizer.pad_token_id)
    inputs = {name: value.to(device) for name, value in inputs.items()}

    def step() -> None:
        for rows in torch.split(torch.arange(count, device=device), _MICRO_BATCH):
            part = {name: value[rows] if value.dim() else value for name, value in inputs.items()}
            trainer.accelerator.backward(trainer._compute_loss(trained, part))
        trainer.accelerator.clip_grad_norm_(trained.parameters(), SETTINGS.max_grad_norm)
        optimizer.step()
        trained.zero_grad()

    return step


_SIDES = {"ours": _ours, "TRL": _trl}


if __name__ == "__main__":
    main()

"""The training step of large models beside TRL's, on the same batch: tokens a second, memory, and what was estimated.

    python -m benchmarks.bench_gpu [--sizes 0.5B 1.5B 7B] [--device cuda] [--gpu "H100 80GB"] [--repeats 5] [--profile]

Architectures of Qwen2.5 with random weights, in bfloat16 with gradient checkpointing: 0.5B and 1.5B whole, with float32
master weights, 7B by an adapter. Rollouts have the lengths that docs/scaling.md takes MuSiQue's for, and random ids;
no reference model. A step is the log-probabilities, loss and gradient over micro-batches, clipping and the optimizer: no
rollouts. Each side in a process of its own, ours in torch's deterministic mode, as trainings are. Estimates are those of
`make plan`, for the same shapes; the share is that of the data sheet's FLOPs. --profile also prints where the time goes.
Without a GPU, `--device cpu --sizes tiny` shows that it runs.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.replay import TINY, Conversation, apart, replay, unpadded
from benchmarks.sides import (
    SETTINGS,
    Step,
    our_batch,
    our_experience,
    our_state,
    parts_of,
    trl_inputs,
    trl_trainer,
)
from lab.scaling.cost import GPUS, Setup, trainer_memory, training_flops, training_seconds
from rlvr_debug.environments import task_of
from rlvr_debug.environments.task import Lengths
from rlvr_debug.grpo.policy import lora_config
from rlvr_debug.grpo.processes import Processes
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.trainer import batch_totals, update_policy
from rlvr_debug.grpo.training import Observer
from rlvr_debug.models.architectures import PUBLISHED, Architecture
from rlvr_debug.models.base_model import model_config, one_thread
from rlvr_debug.sampling.chat import Chat

# by size: the rank of its adapter, 0 for full fine-tuning
SIZES = {"tiny": 0, "tiny-lora": 4, "0.5B": 0, "1.5B": 0, "7B": 16}
_PROMPTS, _GROUP, _MICRO_BATCH = 4, 8, 4
_TURNS, _REPLY = 6, 1024  # at most, as studies/qwen2.5-7b.yaml has them
_SHORT = 16  # times, on a processor
_GIB = 2**30


@dataclass(frozen=True)
class Measured:
    """Seconds of each step after the first, unpadded tokens of one, and the peak in bytes (GPU only).

    operations: a table of those that take longest, in lines, if it was asked for.
    """

    seconds: list[float]
    tokens: int
    peak: int
    operations: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", nargs="+", default=["0.5B", "1.5B", "7B"], choices=SIZES)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--gpu", default="H100 80GB", choices=GPUS, help="that estimates are of")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    print(
        f"{'model':<10} {'side':<5} {'tokens/s':>9} {'step, s':>8}  {'range':<16} {'estimated':>9} "
        f"{'of FLOPs':>8} {'peak, GiB':>9} {'estimated':>9}"
    )
    for size in args.sizes:
        for side in _SIDES:
            found = apart(_measured, size, side, args)
            print(_row(size, side, args, found), *found.operations, sep="\n", flush=True)


def _row(size: str, side: str, args: argparse.Namespace, found: Measured) -> str:
    """Return a line of the table."""
    low, high, middle = min(found.seconds), max(found.seconds), median(found.seconds)
    gpu, lengths = GPUS[args.gpu], _lengths(args.device)
    setup = _setup(size)
    flops = training_flops(setup, lengths, _PROMPTS * _GROUP, 1, kl=False)
    memory = trainer_memory(setup, round(lengths.total), round(lengths.sampled))
    # at the sync nothing is gathered here: no policy is served
    peak = memory.states + memory.activations + memory.logits
    return (
        f"{size:<10} {side:<5} {found.tokens / middle:>9.0f} {middle:>8.3f}  {f'{low:.3f} to {high:.3f}':<16} "
        f"{training_seconds(flops, gpu, 1):>9.3f} {flops / middle / gpu.flops:>8.1%} "
        f"{found.peak / _GIB:>9.2f} {peak / _GIB:>9.2f}"
    )


def _setup(size: str) -> Setup:
    """Return what `make plan` would take this benchmark's step for."""
    settings = _settings(size)
    chunk = min(settings.logprobs_chunk, _MICRO_BATCH)
    return Setup(
        Architecture.of(_config(size)),
        *(1, False, settings.lora_r, settings.bf16, settings.gradient_checkpointing),
        *(_MICRO_BATCH, chunk),
    )


def _lengths(device: str) -> Lengths:
    usual = task_of("musique").lengths.within(_TURNS, _REPLY)
    if device == "cuda":
        return usual
    short = {name: getattr(usual, name) // _SHORT for name in ("prompt", "reply", "tool")}
    return replace(usual, **short)


def _settings(size: str) -> TrainingSettings:
    rank = SIZES[size]
    return replace(
        SETTINGS,
        bf16=True,
        gradient_checkpointing=True,
        num_iterations=1,
        warmup_steps=0,
        kl_beta=0.0,
        aggregation="dapo",
        lora_r=rank,
        lora_alpha=2 * rank or SETTINGS.lora_alpha,
        gradient_accumulation_steps=_PROMPTS * _GROUP // _MICRO_BATCH,
    )


def _measured(size: str, side: str, args: argparse.Namespace) -> Measured:
    cuda = args.device == "cuda"
    torch.set_num_threads(1)
    if side == "ours":
        one_thread()  # and the same bytes each time, as our trainings are run
    conversations = _conversations(args.device)
    with tempfile.TemporaryDirectory() as folder:
        step = _SIDES[side](size, _model(size, args.device), conversations, Path(folder))
        step()
        seconds = []
        for _ in range(args.repeats):
            start = time.perf_counter()
            step()
            if cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        peak = torch.cuda.max_memory_allocated() if cuda else 0
        operations = _operations(step, cuda) if args.profile else []
    return Measured(seconds, unpadded(conversations), peak, operations)


def _operations(step: Step, cuda: bool) -> list[str]:
    """Return a table of the operations of a step that take longest, in lines."""
    with torch.profiler.profile() as found:
        step()
    key = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    table = found.key_averages().table(sort_by=key, row_limit=12, max_name_column_width=40)
    return str(table).splitlines()


def _conversations(device: str) -> list[Conversation]:
    """Return rollouts whose lengths are spread by half about those that are estimated with, a prompt for each group."""
    usual, chance = _lengths(device), random.Random(0)

    def spread(mean: float) -> int:
        return max(1, round(mean * chance.uniform(0.5, 1.5)))

    def ids(count: int) -> list[int]:
        return [chance.randrange(256) for _ in range(count)]

    found = []
    for _ in range(_PROMPTS):
        prompt = ids(spread(usual.prompt))
        for _ in range(_GROUP):
            turns = max(1, spread(usual.turns))
            between = [spread(usual.tool) for _ in range(turns - 1)]
            others = [*map(ids, between), []]
            found.append(Conversation(prompt, [(spread(usual.reply), new) for new in others]))
    return found


def _sequences(conversations: list[Conversation]) -> tuple[list[list[int]], list[list[bool]]]:
    """Return ids and which of them were sampled, of replies of random ids."""
    chance = random.Random(1)
    return replay(
        conversations,
        lambda slots, histories, lengths: [
            [chance.randrange(256) for _ in range(length)] for length in lengths
        ],
    )


def _config(size: str) -> dict[str, Any]:
    if size.startswith("tiny"):
        return {**model_config(TINY), "layer_types": None}
    return dict(PUBLISHED[f"Qwen2.5-{size}"])


def _model(size: str, device: str) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(**_config(size), attn_implementation="sdpa")
    # as trainers hold them: weights that nothing moves in the precision that they are computed in
    dtype = torch.bfloat16 if SIZES[size] else torch.float32
    with torch.device(device):
        model = Qwen2ForCausalLM._from_config(config, dtype=dtype)
    return model.eval()


def _ours(size: str, model: Any, conversations: list[Conversation], folder: Path) -> Step:
    settings = _settings(size)
    state = our_state(model, None, None, settings)
    ids, sampled = _sequences(conversations)
    batch = our_batch(ids, sampled, [[0.0] * sum(mask) for mask in sampled])
    processes, nobody = Processes(), Observer()
    totals = batch_totals(batch, settings, max(map(sum, sampled)), processes)
    experience = our_experience(batch, None, totals)

    def step() -> None:
        update_policy(state, experience, settings, Stages(), processes, nobody)

    return step


def _trl(size: str, model: Any, conversations: list[Conversation], folder: Path) -> Step:
    count, device = len(conversations), next(model.parameters()).device
    tokenizer = Chat(TINY).tokenizer
    trainer = trl_trainer(
        *(model, folder, count, _MICRO_BATCH),
        {
            "use_cpu": device.type == "cpu",
            "bf16": True,
            "gradient_checkpointing": True,
            "beta": 0.0,
        },
        processing_class=tokenizer,
        peft_config=lora_config(_settings(size)) if SIZES[size] else None,
    )
    # as Trainer's own loop has it: prepared by accelerate, for mixed precision
    trained = trainer.accelerator.prepare(trainer.model)
    trained.gradient_checkpointing_enable({"use_reentrant": False})
    trained.train()
    optimizer = trainer.create_optimizer()
    ids, sampled = _sequences(conversations)
    inputs = trl_inputs(conversations, ids, sampled, tokenizer.pad_token_id)
    inputs = {name: value.to(device) for name, value in inputs.items()}

    def step() -> None:
        for part in parts_of(inputs, _MICRO_BATCH):
            trainer.accelerator.backward(trainer._compute_loss(trained, part))
        trainer.accelerator.clip_grad_norm_(trained.parameters(), SETTINGS.max_grad_norm)
        optimizer.step()
        trained.zero_grad()

    return step


_SIDES = {"ours": _ours, "TRL": _trl}


if __name__ == "__main__":
    main()

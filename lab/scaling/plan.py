"""What GPUs a study of a real model would take, in lines, by the formulas of cost.py."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lab.scaling.cost import (
    GPUS,
    Gpu,
    Memory,
    Setup,
    adapter_slots,
    cached_tokens,
    kv_bytes,
    sampling_seconds,
    trainer_memory,
    training_flops,
    training_seconds,
)
from rlvr_debug.devices import positions
from rlvr_debug.environments import task_of
from rlvr_debug.environments.task import Lengths
from rlvr_debug.files import read_yaml
from rlvr_debug.models.architectures import Architecture, architecture_of
from rlvr_debug.study.arms import trained_runs
from rlvr_debug.study.model import Params
from rlvr_debug.study.plan import environments_of, is_real
from rlvr_debug.trainers import Run

# of each job: loading the model, starting the server
_START_SECONDS = 180.0
_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
_GB, _DAY = 1e9, 24.0


@dataclass(frozen=True)
class RunCost:
    """Of one training and its held-out evaluation: tokens of all sequences it is trained on, those of
    them that were sampled, seconds of a step's two halves, and hours of one GPU times their number."""

    tokens: float
    sampled: float
    sampling: float
    training: float
    gpu_hours: float
    hours: float


def setup_of(run: Run, params: Params, model: Architecture, root: Path) -> Setup:
    training, launch = run.training, params.launch
    rollouts = run.rollouts_per_step
    share = rollouts / launch.processes / training.gradient_accumulation_steps
    return Setup(
        model,
        launch.processes,
        bool(launch.config) and _shards(root / launch.config),
        training.lora_r,
        training.bf16,
        training.gradient_checkpointing,
        math.ceil(share),
        min(training.logprobs_chunk, math.ceil(share)),
        {"bfloat16": 2, "float64": 8}.get(training.logprobs_dtype, 4),
    )


def _shards(config: Path) -> bool:
    """Whether this config of accelerate cuts the weights over processes."""
    return bool(read_yaml(config).get("deepspeed_config", {}).get("zero_stage") == 3)


def lengths_of(run: Run, params: Params) -> tuple[Lengths, Lengths]:
    """Return the lengths of a rollout as they are taken to be, and the longest that the environment allows."""
    settings = {**params.settings(run.environment), **run.rollouts}
    turns, reply = settings.get("max_turns", 1), settings["max_new_tokens"]
    usual = task_of(run.environment).lengths.within(turns, reply)
    return usual, replace(usual, turns=turns, reply=reply)


def _gpus(params: Params) -> tuple[int, int]:
    """That a training holds, its server's among them, and that a server does."""
    launch, vllm = params.launch, params.vllm
    server = vllm.tensor_parallel_size * vllm.data_parallel_size
    apart = positions(launch.devices) and positions(vllm.devices)
    both = launch.processes + server if apart else max(launch.processes, server)
    return both, server


def run_cost(run: Run, params: Params, model: Architecture, gpu: Gpu, root: Path) -> RunCost:
    """With vLLM as the sampler of training and evaluation; the two halves of a step wait for each other."""
    training, vllm = run.training, params.vllm
    setup, (lengths, _) = setup_of(run, params, model, root), lengths_of(run, params)
    rollouts, width = run.rollouts_per_step, _WIDTHS[vllm.dtype]
    held, server = _gpus(params)
    at_once = vllm.max_num_seqs * vllm.data_parallel_size
    sampling = sampling_seconds(model, gpu, width, lengths, rollouts, at_once)
    flops = training_flops(setup, lengths, rollouts, training.num_iterations, training.kl_beta > 0)
    updating = training_seconds(flops, gpu, setup.processes)
    seconds = training.steps * (sampling + updating) + _START_SECONDS
    # greedy and sampled
    rows = 2 * params.data[run.environment].heldout
    judging = sampling_seconds(model, gpu, width, lengths, rows, at_once) + _START_SECONDS
    every = training.steps * rollouts
    return RunCost(
        every * lengths.total,
        every * lengths.sampled,
        sampling,
        updating,
        (seconds * held + judging * server) / 3600,
        (seconds + judging) / 3600,
    )


def gpu_lines(params: Params, to_do: int, root: Path) -> list[str]:
    """Of a study whose model is real; none of another's. to_do: trainings that are not done."""
    if not is_real(params):
        return []
    lines = ["", "GPUs, estimated by formula; docs/scaling.md says what was measured on one:"]
    known: dict[str, Architecture] = {}
    for environment in environments_of(params):
        model = params.base_model_of(environment)
        if found := architecture_of(model, root):
            known[environment] = found
            first = next(run for run in trained_runs(params) if run.environment == environment)
            lines += [f"{environment}, {model.name}:", *_of_model(first, params, found, root)]
        else:
            lines.append(f"{environment}, {model.name}: not fetched, and its sizes are not known")
    if params.sampler != "vllm":
        return [*lines, "Hours are estimated with sampler vllm alone."]
    trained = [run for run in trained_runs(params) if run.environment in known]
    if trained:
        costs = {
            name: [run_cost(run, params, known[run.environment], gpu, root) for run in trained]
            for name, gpu in GPUS.items()
        }
        lines += ["", *_hours(costs, to_do, _gpus(params)[0])]
    return lines


def _of_model(run: Run, params: Params, model: Architecture, root: Path) -> Iterator[str]:
    setup, (usual, longest) = setup_of(run, params, model, root), lengths_of(run, params)
    vllm, gpu = params.vllm, next(iter(GPUS.values()))
    how = "ZeRO-3" if setup.sharded else "a copy each"
    yield (
        f"  {model.parameters / 1e9:.2f} B weights, {setup.trained / 1e6:.1f} M of them trained"
        + (f", on {setup.processes} GPUs ({how})" if setup.processes > 1 else ", on one GPU")
    )
    memory = trainer_memory(setup, math.ceil(longest.total), math.ceil(longest.sampled))
    yield from _memory(memory)
    tokens = run.training.steps * run.rollouts_per_step
    yield (
        f"  tokens of a rollout {usual.total:,.0f} (at most {longest.total:,.0f}), {usual.sampled:,.0f} of them "
        "sampled;"
    )
    yield f"  of a run {tokens * usual.total / 1e6:,.1f} M, {tokens * usual.sampled / 1e6:,.1f} M sampled"
    if params.sampler != "vllm":
        return
    width, share = _WIDTHS[vllm.dtype], vllm.gpu_memory_utilization
    room = cached_tokens(model, gpu, share, width, vllm.tensor_parallel_size)
    yield (
        f"  server: weights {width * model.parameters / _GB:.1f} GB, cache for {room:,} tokens of "
        f"{kv_bytes(model, width) / 1024:.0f} KiB"
    )
    if run.training.lora_r:
        rank = run.training.lora_r
        busy = math.ceil(vllm.max_num_seqs * usual.total)
        slots = adapter_slots(model, gpu, share, width, rank, busy)
        size = width * model.adapter(rank) / 1e6
        yield f"  an adapter has {size:.0f} MB; {slots} fit beside {vllm.max_num_seqs} conversations"


def _memory(memory: Memory) -> Iterator[str]:
    yield "  GB on a trainer GPU, at the longest sequence:"
    parts = [(name, size) for name, size in vars(memory).items() if size and name != "sync"]
    for line in (parts[:4], parts[4:]):
        yield "    " + " ".join(f"{name:>11}" for name, _ in line)
        yield "    " + " ".join(f"{size / _GB:>11.2f}" for _, size in line)
    yield (
        f"  peak {memory.peak / _GB:.1f}: {(memory.peak - memory.sync) / _GB:.1f} and the whole model, "
        f"{memory.sync / _GB:.1f}, at the sync"
        if memory.states + memory.sync >= memory.peak
        else f"  peak {memory.peak / _GB:.1f}, while the gradient is taken"
    )


def _hours(costs: Mapping[str, Sequence[RunCost]], to_do: int, held: int) -> Iterator[str]:
    def row(name: str, values: Iterator[float] | list[float], form: str = ",.1f") -> str:
        return f"{name:<40}" + "".join(f"{format(value, form):>14}" for value in values)

    every = costs.values()
    first = next(iter(every))
    yield f"{'':<40}" + "".join(f"{name:>14}" for name in costs)
    yield row("seconds of a step, sampled first", [c[0].sampling for c in every])
    yield row("  and then trained on", [c[0].training for c in every])
    yield row("hours of the first run", [c[0].hours for c in every])
    mean = [sum(run.gpu_hours for run in c) / len(c) for c in every]
    yield row(f"GPU hours of {len(first)} trainings", [m * len(first) for m in mean])
    yield row(f"  of the {to_do} not done yet", [m * to_do for m in mean])
    days = [sum(run.hours for run in c) / _DAY for c in every]
    yield row(f"days on one machine of {held} GPU{'s' if held > 1 else ''}", days)
    tokens = sum(run.tokens for run in first), sum(run.sampled for run in first)
    yield f"tokens of all trainings: {tokens[0] / 1e6:,.0f} M, {tokens[1] / 1e6:,.0f} M of them sampled"

"""How soon an arm learns: held-out reward every few steps, on many seeds.

    python -m benchmarks.bench_learning [--overlay FILE] [--arm control] [--seeds 10 ... 19] [--every 5]

Prints, of each seed, sampled held-out reward at those steps, and the first of them from which it is at
least 90 % of the last. Two seeds at a time, one core each.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch

from rlvr_debug.causes import stages_with
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import read_splits
from rlvr_debug.environments import build_environment
from rlvr_debug.evaluation import evaluate
from rlvr_debug.grpo.policy import build_policy
from rlvr_debug.grpo.trainer import start, train_step
from rlvr_debug.grpo.training import Observer, Training
from rlvr_debug.models.base_model import load_model, load_weights, model_config
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.study.arms import runs
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers.base import Run

SHARE = 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--overlay", type=Path)
    parser.add_argument("--arm", default="control")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10, 20)))
    parser.add_argument("--every", type=int, default=5)
    args = parser.parse_args()
    params = load_params(ROOT / "params.yaml", args.overlay)
    [run, *_] = [run for run in runs(params) if run.arm == args.arm]
    steps = list(range(0, run.training.steps + 1, args.every))
    print(
        f"{args.arm}, held-out reward (sampled) at steps\nseed" + "".join(f"{s:>7}" for s in steps),
        end="",
    )
    print(f"   {SHARE:.0%} from")
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        jobs = [
            pool.submit(rewards, params, replace(run, seed=seed), args.every) for seed in args.seeds
        ]
        for seed, job in zip(args.seeds, jobs, strict=True):
            found = job.result()
            cells = "".join(f"{each:>7.3f}" for each in found)
            print(f"{seed:>4}{cells}   step {steps[reached(found)]}", flush=True)


def reached(rewards: list[float]) -> int:
    """Index of the first from which all are at least SHARE of the last."""
    below = [i for i, reward in enumerate(rewards) if reward < SHARE * rewards[-1]]
    return below[-1] + 1 if below else 0


def rewards(params: Params, run: Run, every: int) -> list[float]:
    """Held-out reward before the first step and after every `every`th."""
    torch.set_num_threads(1)
    base = ROOT / params.base_model
    splits, _ = read_splits(run.environment, params.data_settings(run.environment))
    environment = build_environment(run.environment, params.settings(run.environment))
    chat = Chat(base)
    sampler = InProcessSampler(
        model_config(base), load_weights(base / "model.safetensors"), chat.ends
    )
    policy = build_policy(
        load_model(base, "sdpa"), load_model(base, "sdpa"), run.training, run.seed
    )
    stages = stages_with(run.faults)
    training = Training(chat, environment, splits.train, run.training, run.seed, stages)
    state = start(training, policy, sampler)

    def heldout_reward() -> float:
        found = evaluate(
            splits.heldout,
            environment,
            chat,
            sampler,
            temperature=1.0,
            seed=params.evaluation.seed,
        )
        sampler.reset()
        return float(found["sampled"]["reward"])

    found = [heldout_reward()]
    while state.step < run.training.steps:
        state, _ = train_step(training, state, Observer())
        if state.step % every == 0:
            found.append(heldout_reward())
    return found


if __name__ == "__main__":
    main()

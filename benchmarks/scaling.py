"""The figures of docs/scaling.md that `make plan` does not print: python -m benchmarks.scaling. Formulas, no measurement."""

from __future__ import annotations

from math import ceil
from statistics import mean

from lab.scaling.cost import (
    GPUS,
    cached_tokens,
    decode_seconds,
    sampling_seconds,
    trainer_memory,
)
from lab.scaling.plan import lengths_of, run_cost, setup_of
from rlvr_debug.checkout import ROOT
from rlvr_debug.models.architectures import PUBLISHED, Architecture
from rlvr_debug.study.arms import trained_runs
from rlvr_debug.study.params import load_params

STUDY = ROOT / "studies" / "qwen2.5-7b.yaml"
MODELS = {
    "musique": Architecture.of(PUBLISHED["Qwen2.5-7B"]),
    "calculator": Architecture.of(PUBLISHED["Qwen2.5-7B"]),
    "gsm8k": Architecture.of(PUBLISHED["Qwen2.5-3B"]),
}


def main() -> None:
    params = load_params(ROOT / "params.yaml", STUDY)
    trained = trained_runs(params)
    model, first = MODELS["musique"], trained[0]
    usual, longest = lengths_of(first, params)
    rollouts = first.training.prompts_per_step * first.training.group_size
    half = usual.total / 2
    for name, gpu in GPUS.items():
        step = decode_seconds(model, gpu, 2, rollouts, half)
        every = sampling_seconds(model, gpu, 2, usual, rollouts, 128)
        cost = run_cost(first, params, model, gpu, ROOT)
        print(f"{name}: a step reads {every - usual.sampled * step:.1f} s, decodes", end=" ")
        print(f"{usual.sampled * step:.1f} s at {step * 1e3:.1f} ms, trains {cost.training:.1f} s")
        together = [decode_seconds(model, gpu, 2, k * rollouts, half) * 1e3 for k in (1, 2, 8)]
        print("  ms a token with 1, 2, 8 trainings:", *(f"{ms:.0f}" for ms in together))
        last = longest.sampled * decode_seconds(model, gpu, 2, 1, longest.total / 2)
        print(f"  the longest rollout alone: {last:.0f} s")
        hours = mean(
            run_cost(run, params, MODELS[run.environment], gpu, ROOT).hours for run in trained
        )
        table = (f"{n}: {ceil(len(trained) / n) * hours:.1f}" for n in (1, 2, 4, 8, 16, 38, 114))
        print(f"  a run and its evaluation {hours:.2f} h; by nodes", *table)
    a100 = GPUS["A100 80GB"]
    for count in (0, 16, len(trained)):
        room = cached_tokens(model, a100, 0.9, 2, adapters=count * 2 * model.adapter(16))
        print(f"cache beside {count} adapters: {room:,} tokens")
    full = trainer_memory(setup_of(first, params, model, ROOT, rank=0), 1, 1)
    print(f"full fine-tuning: states {full.states / 1e9:.0f} GB, sync {full.sync / 1e9:.0f} GB")


if __name__ == "__main__":
    main()

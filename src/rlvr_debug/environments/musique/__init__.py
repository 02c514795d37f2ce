"""MuSiQue: multi-hop questions over the row's own paragraphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlvr_debug.environments.musique.environment import MuSiQue
from rlvr_debug.environments.musique.policies import POLICIES
from rlvr_debug.environments.musique.retrieval import STRATEGIES
from rlvr_debug.environments.musique.rows import MuSiQueRow, synthetic_musique
from rlvr_debug.environments.task import Lengths, Task, shares


def _synthetic(settings: Mapping[str, Any]) -> Iterator[MuSiQueRow]:
    names = ("paragraphs", "same_relation", "seed", "heldout")
    others = {name: settings[name] for name in names}
    return synthetic_musique(settings["rows"], hops=shares(settings["hops"]), **others)


TASK = Task(
    row=MuSiQueRow,
    synthetic=_synthetic,
    build=MuSiQue,
    policies=POLICIES,
    # prompts, tool results and number of replies from rows (docs/scaling.md), replies assumed
    lengths=Lengths(prompt=250, reply=150, turns=3.4, tool=380),
    datasets="bdsaglam/musique-mini,answerable,train",
    flags={
        "--retriever": {"dest": "retrieval", "choices": STRATEGIES, "default": "bm25"},
        "--top-n": {"dest": "top_n", "type": int, "default": 3, "help": "paragraphs per call"},
        "--max-turns": {"dest": "max_turns", "type": int, "default": 10},
        "--noise-rate": {
            "dest": "noise_rate",
            "type": float,
            "default": 1.0,
            "help": "share of other paragraphs kept",
        },
    },
)

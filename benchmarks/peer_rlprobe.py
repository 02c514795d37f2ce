"""rlprobe 0.1.0 on a log of TRL's: `python -m benchmarks.peer_rlprobe FOLDER` in the environment of envs/peers.txt.

rlprobe reads no files but its own recordings. So its own callback for TRL records the rows of trainer_state.json and
the completions as if the run were going on, and its doctor reads that. Prints the findings as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any


def main() -> None:
    # of transformers, rlprobe takes the base class of its callback and nothing else
    stand_in: Any = types.ModuleType("transformers")
    stand_in.TrainerCallback = object
    sys.modules.setdefault("transformers", stand_in)
    from rlprobe.doctor import diagnose
    from rlprobe.integrations.trl import RlprobeCallback

    folder = Path(sys.argv[1])
    history = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    lines = (folder / "completions.jsonl").read_text(encoding="utf-8").splitlines()
    completions = [json.loads(line) for line in lines]
    args = types.SimpleNamespace(world_size=1, process_index=0, num_generations=4, to_dict=dict)
    trainer = types.SimpleNamespace(_logs=None, args=args, model=None)
    with tempfile.TemporaryDirectory() as place:
        callback = RlprobeCallback(Path(place) / "run", trainer=trainer)
        state = types.SimpleNamespace(global_step=0)
        callback.on_train_begin(args, state, None)
        for row in history:
            state.global_step = int(row["step"])
            shown = [each for each in completions if each["step"] == row["step"]]
            trainer._logs = _buffer(shown) if shown else {"completion": []}
            callback.on_log(args, state, None, logs=row)
        callback.on_train_end(args, state, None)
        found = diagnose(Path(place) / "run")
    print(json.dumps([finding.model_dump() for finding in found]))


def _buffer(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """As TRL's trainer holds them."""
    parts = [key for key in rows[0] if key not in ("step", "prompt", "completion", "advantage")]
    return {
        "prompt": [row["prompt"] for row in rows],
        "completion": [row["completion"] for row in rows],
        "advantages": [row["advantage"] for row in rows],
        "rewards": {part: [row[part] for row in rows] for part in parts},
    }


if __name__ == "__main__":
    main()

"""A user's script under the check: `python -m rlvr_debug.trainers.trl.check_script told.json script.py ARGS`.

The script runs as it would by itself until it calls GRPOTrainer.train: a few steps are recorded there, the record is
checked, and the process ends. told.json says how, and where the answer goes.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["main", "saved_weights"]

_LARGE = 200_000_000  # weights, from which on nothing is saved to be compared


class _Done(BaseException):
    """Raised when the check is over: no `except Exception` of a script keeps it from ending."""


def main() -> None:
    """Run the script of the command line."""
    told = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    script = sys.argv[2]
    sys.argv = sys.argv[2:]
    warnings.filterwarnings("ignore")
    started = time.perf_counter()
    from trl import GRPOTrainer

    imported = time.perf_counter() - started
    inner = GRPOTrainer.train

    def train(trainer: Any, *given: Any, **named: Any) -> None:
        answer = _checked(trainer, told, lambda: inner(trainer, *given, **named))
        answer["seconds"]["imports"] = imported
        _write(Path(told["out"]), answer)
        raise _Done

    GRPOTrainer.train = train
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except _Done:
        sys.stdout.flush()
        # threads of a script must not keep the process, nor its exit handlers print
        os._exit(0)


def _checked(trainer: Any, told: Mapping[str, Any], run: Any) -> dict[str, Any]:
    import torch

    from rlvr_debug.replay.answer import answer_of
    from rlvr_debug.replay.check import check
    from rlvr_debug.replay.store import write_record
    from rlvr_debug.trainers.trl.recorder import Recorder

    recorder = Recorder(trainer, steps=told["steps"], rewards=told["rewards"])
    recorder.attach()
    started = time.perf_counter()
    run()
    ran = time.perf_counter() - started
    started = time.perf_counter()
    record = recorder.detach()
    record.saved = saved_weights(trainer, record)
    if told.get("record"):
        write_record(record, Path(told["record"]))
    torch.set_grad_enabled(True)
    checked = check(record)
    took = time.perf_counter() - started
    return answer_of(record, checked) | {"seconds": {"steps": ran, "check": took}}


def saved_weights(trainer: Any, record: Any) -> Any:
    """Return what the trainer saves, by plain names, or None where it saves nothing that could be read."""
    from safetensors.torch import load_file

    from rlvr_debug.replay.network import plain_weights

    last = record.weights[-1]
    if sum(tensor.numel() for tensor in last.values()) > _LARGE:
        record.notes.append("the model is large: what the trainer saves was not compared")
        return None
    with tempfile.TemporaryDirectory() as folder:
        try:
            trainer.save_model(folder)
        except Exception as error:  # the user's
            record.notes.append(f"saving failed: {type(error).__name__}: {error}")
            return None
        adapter = Path(folder, "adapter_model.safetensors")
        if adapter.is_file():
            saved = load_file(adapter)
            held = {
                name: saved.get(_without_adapter(name), tensor * 0) if ".lora_" in name else tensor
                for name, tensor in last.items()
            }
            return plain_weights(held, record.scalings)
        found: dict[str, Any] = {}
        for file in sorted(Path(folder).glob("*.safetensors")):
            found |= load_file(file)
        return found or None


def _without_adapter(name: str) -> str:
    """Return the name that peft gives a weight of an adapter in a file."""
    left, _, right = name.rpartition(".lora_")
    part, _, rest = right.partition(".")
    return f"{left}.lora_{part}.{rest.partition('.')[2]}"


def _write(path: Path, answer: Mapping[str, Any]) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(answer), encoding="utf-8")
    os.replace(part, path)


if __name__ == "__main__":
    main()

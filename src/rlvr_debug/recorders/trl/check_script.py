"""A user's script under the check: `python -m rlvr_debug.recorders.trl.check_script told.json script.py ARGS`.

In place of the script `-m MODULE` runs a module, as Python does.

The script runs as it would by itself until it calls GRPOTrainer.train: a few steps are recorded there, the record is
checked, and the process ends. told.json says how, and where the answer goes.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError
from rlvr_debug.recorders.trl.launched import Beats, Ranks

__all__ = ["main"]


class _Done(BaseException):
    """Raised when the check is over: no `except Exception` of a script keeps it from ending."""


def main() -> None:
    """Run the script of the command line."""
    told = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    script = sys.argv[2]
    module = script == "-m"
    sys.argv = sys.argv[2 + module :]
    warnings.filterwarnings("ignore")
    started = time.perf_counter()
    from trl import GRPOTrainer

    from rlvr_debug.recorders.trl.beforehand import changed_note
    from rlvr_debug.recorders.trl.sampler_calls import make_watchable

    make_watchable()  # before the script takes hold of a method
    imported = time.perf_counter() - started
    ranks = _ranks(*told["ranks"]) if "ranks" in told else None
    inner, make = GRPOTrainer.train, GRPOTrainer.__init__
    made: dict[int, dict[str, Any]] = {}

    @functools.wraps(make)
    def init(trainer: Any, *given: Any, **named: Any) -> None:
        make(trainer, *given, **named)
        made[id(trainer)] = dict(vars(trainer.args))

    def train(trainer: Any, *given: Any, **named: Any) -> None:
        changed = changed_note(made.get(id(trainer), {}), vars(trainer.args))
        answer = _checked(trainer, told, ranks, lambda: inner(trainer, *given, **named))
        if answer:
            answer["notes"] += filter(None, [changed])
            answer["seconds"]["imports"] = imported
            _write(Path(told["out"]), answer)
        raise _Done

    GRPOTrainer.__init__, GRPOTrainer.train = init, train
    sys.path.insert(0, os.getcwd() if module else str(Path(script).resolve().parent))
    try:
        if module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except _Done:
        sys.stdout.flush()
        # threads of a script must not keep the process, nor its exit handlers print
        os._exit(0)
    except BaseException as error:
        if ranks is not None:
            ranks.ended(f"{script}: ended before its steps were recorded: {_last(error)}")
        if not isinstance(error, Exception):
            raise
        traceback.print_exc()
        print(_last(error), file=sys.stderr, flush=True)
        raise SystemExit(1) from None


def _ranks(rank: int, size: int, folder: str) -> Ranks:
    return Ranks(rank, size, Path(folder))


def _last(error: BaseException) -> str:
    """Return what the script exits with, or raised, and the last line of the user's that led there."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, str) else f"exit status {error.code or 0}"
    frames = traceback.extract_tb(error.__traceback__)
    libraries = (
        "site-packages",
        "<frozen",
        str(Path(__file__).parents[2]),
        os.path.dirname(os.__file__),
    )
    own = [each for each in frames if not any(place in each.filename for place in libraries)]
    said = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {said}"
    return f"{own[-1].filename}:{own[-1].lineno}: {said}" if own else said


def _checked(
    trainer: Any, told: Mapping[str, Any], ranks: Ranks | None, run: Callable[[], Any]
) -> dict[str, Any]:
    """Return the answer; of several processes the first one has it, and the others nothing."""
    from rlvr_debug.recorders.trl.kept import give_back
    from rlvr_debug.recorders.trl.live import checked, need_replicas, together, watched
    from rlvr_debug.recorders.trl.recorder import Recorder
    from rlvr_debug.replay.declared import declare
    from rlvr_debug.replay.store import write_record

    if trainer.accelerator.num_processes != (size := ranks.size if ranks else 1):
        raise SystemExit(
            f"the trainer takes itself for one of {trainer.accelerator.num_processes} processes, and {size} were started"
        )
    try:
        need_replicas(trainer.accelerator)
    except InputError as error:
        raise SystemExit(str(error)) from None
    declare(told.get("expect", {}))
    beat = Beats(ranks) if ranks else lambda _: None
    recorder = Recorder(trainer, steps=told["steps"], rewards=told["rewards"], beat=beat)
    record, ran = watched(recorder, trainer, run)
    if record.elements and not recorder.cut.moved:
        give_back(trainer)  # the process ends with the check, which has room of its own now
    if ranks is not None:
        whole = together(record, recorder.cut, ranks)
        if whole is None:
            return {}
        record = whole
    if told.get("record"):
        write_record(record, Path(told["record"]))
    return checked(record, ran)


def _write(path: Path, answer: Mapping[str, Any]) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(answer), encoding="utf-8")
    os.replace(part, path)


if __name__ == "__main__":
    main()

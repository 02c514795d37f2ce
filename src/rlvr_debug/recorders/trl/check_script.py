"""A user's script under the check, in a process of its own that ends with this one.

`python -m rlvr_debug.recorders.trl.check_script told.json script.py ARGS`, or `-m MODULE`: the script runs as it would by itself
until it calls GRPOTrainer.train; a few steps are recorded and checked, and the process ends.
"""

import functools
import json
import os
import runpy
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_json, write_text
from rlvr_debug.processes import guarded, last_line
from rlvr_debug.recorders.trl.launched import LIBRARIES, Ranks

_PROGRAM = "rlvr_debug.recorders.trl.check_script"
_WHY = "why"  # the file with what the script raised, as one line
_PIECE = 1 << 16
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "python", "python3")


@dataclass(frozen=True)
class How:
    """How a script is checked. save: a folder for the record. limit: seconds in which a process has to record something."""

    steps: int = 3
    rewards: bool = True
    save: Path | None = None
    ranks: Ranks | None = None
    limit: float = 600.0
    expect: Mapping[str, str] = field(default_factory=dict)


def check_script(words: Sequence[str], how: How) -> Mapping[str, Any]:
    """Return what the check says of a script. words: its path, or -m and a module, and its arguments.

    Raise InputError where it is none, or ends before its steps were recorded; of several processes, all but the first do.
    """
    script = Path(words[0])
    if words[0] == "-m":
        script = Path(*words[1:2])
    else:
        _need_script(script)
    if how.save is not None and how.save.exists():
        raise InputError(f"{how.save}: exists; give --save a new folder")
    with tempfile.TemporaryDirectory() as folder:
        out, told, log, why_not = (
            Path(folder, n) for n in ("answer.json", "told.json", "log", _WHY)
        )
        record = None if how.save is None else str(how.save.resolve())
        ranks = how.ranks
        asked = {"out": str(out), "steps": how.steps, "rewards": how.rewards, "record": record}
        asked["expect"] = dict(how.expect)
        if ranks is not None:
            asked |= {"ranks": [ranks.rank, ranks.size, str(ranks.folder)], "limit": how.limit}
        write_json(told, asked)
        status = _run([sys.executable, "-m", _PROGRAM, str(told), *words], log, how)
        if out.is_file():
            answer: Mapping[str, Any] = read_json(out)
            return answer
        why = f"{script}: ended without a call of GRPOTrainer.train, expected a script that trains with TRL"
        if status:
            before = "before its steps were recorded"
            why = f"{script}: ended with status {status} {before}: {last_line(why_not if why_not.is_file() else log)}"
        if ranks is not None:
            ranks.ended(why)
            ranks.check(time.time(), how.limit)
        raise InputError(why)


def _need_script(script: Path) -> None:
    """Raise InputError for what is no Python program: it would be executed."""
    expected = "expected a script that trains with GRPOTrainer"
    if script.name in _LAUNCHERS and not script.is_file():
        its = f"{script} ... -m rlvr_debug check train.py"
        raise InputError(
            f"{script}: found a launcher, expected a script; type the launcher first: {its}"
        )
    if not script.is_file():
        found = "is a folder" if script.is_dir() else "no such file"
        raise InputError(f"{script}: {found}, {expected}")
    with script.open("rb") as file:
        begins = file.readline(_PIECE)
    if script.suffix != ".py" and not (begins.startswith(b"#!") and b"python" in begins):
        raise InputError(f"{script}: not a Python file, {expected}")


def _run(argv: Sequence[str], log: Path, how: How) -> int:
    """Run the program, pass on to stderr what it says as it says it, and see meanwhile whether another process has ended."""
    ranks, begun = how.ranks, time.time()
    package = str(Path(__file__).resolve().parents[3])
    places = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    with (
        guarded(argv, log, environment) as process,
        log.open(encoding="utf-8", errors="replace") as said,
    ):
        status = None
        while True:
            piece = said.read(_PIECE)
            if piece:
                print(piece, end="", file=sys.stderr, flush=True)
            elif status is not None:
                return status
            else:
                if ranks is not None and not ranks.rank:
                    ranks.check(begun, how.limit)
                elif ranks is not None and (ranks.folder / "said").exists():
                    raise InputError("another process ended first")
                with suppress(TimeoutExpired):
                    status = process.wait(0.1)


# --- in that process


class _Done(BaseException):
    """Raised when the check is over: no `except Exception` of a script keeps it from ending."""


def main() -> None:
    told = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    script = sys.argv[2]
    module = script == "-m"
    sys.argv = sys.argv[2 + module :]
    warnings.filterwarnings("ignore")
    started = time.perf_counter()
    from trl import GRPOTrainer

    from rlvr_debug.recorders.trl.sampler_calls import make_watchable
    from rlvr_debug.recorders.trl.settings import changed_note

    make_watchable()  # before the script takes hold of a method
    imported = time.perf_counter() - started
    ranks = None
    if "ranks" in told:
        rank, size, folder = told["ranks"]
        ranks = Ranks(rank, size, Path(folder))
        ranks.watch(told["limit"])
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
            write_text(Path(told["out"]), json.dumps(answer))
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
        sys.stderr.writelines(
            _without_ours(traceback.TracebackException.from_exception(error)).format()
        )
        # not a second time on the terminal, where the traceback is
        write_text(Path(told["out"]).with_name(_WHY), _last(error))
        raise SystemExit(1) from None


def _without_ours(raised: traceback.TracebackException) -> traceback.TracebackException:
    """Return what a script raised as it would read without the check: no frame is this package's, or runpy's."""
    ours = (str(Path(__file__).parents[2]), "<frozen runpy>")
    kept = [frame for frame in raised.stack if not frame.filename.startswith(ours)]
    raised.stack = traceback.StackSummary.from_list(kept)
    for each in filter(None, (raised.__cause__, raised.__context__)):
        _without_ours(each)
    return raised


def _last(error: BaseException) -> str:
    """Return what the script exits with, or raised, and the last line of the user's that led there."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, str) else f"exit status {error.code or 0}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not any(place in each.filename for place in LIBRARIES)]
    said = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {said}"
    return f"{own[-1].filename}:{own[-1].lineno}: {said}" if own else said


def _checked(
    trainer: Any, told: Mapping[str, Any], ranks: Ranks | None, run: Callable[[], Any]
) -> dict[str, Any]:
    """Return the answer; of several processes the first one has it, and the others nothing."""
    from rlvr_debug.recorders.trl.live import need_replicas, together, watched
    from rlvr_debug.recorders.trl.objects import give_back
    from rlvr_debug.recorders.trl.recorder import Recorder
    from rlvr_debug.replay.declared import declare
    from rlvr_debug.replay.store import answered, write_record

    if trainer.accelerator.num_processes != (size := ranks.size if ranks else 1):
        own = trainer.accelerator.num_processes
        raise SystemExit(f"the trainer expects {own} processes, but {size} were started")
    try:
        need_replicas(trainer.accelerator)
    except InputError as error:
        raise SystemExit(str(error)) from None
    declare(told.get("expect", {}))
    recorder = Recorder(trainer, steps=told["steps"], rewards=told["rewards"], ranks=ranks)
    record, ran = watched(recorder, trainer, run)
    if record.elements and not recorder.cut.moved:
        give_back(trainer)  # the process ends with the check, which has room of its own now
    whole = together(record, recorder.cut, ranks)
    if whole is None:
        return {}
    if told.get("record"):
        write_record(whole, Path(told["record"]))
    return answered(whole, ran)


if __name__ == "__main__":
    main()

"""Programs: how ours begin and end, and how one is started that cannot outlive whoever started it.

This file is also the guard that such a program runs under, in an interpreter of its own (`python processes.py
program arguments...`): at the top it imports nothing but the standard library.
"""

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PARENT = "RLVR_DEBUG_PARENT"  # process id, set by workflow/rules/common.smk
_ERROR = "error: "  # what the line of bad input begins with
_LOOK = 1.0  # seconds between two looks at it

# of the machine and not of the program: a line says all there is to say
_OF_THE_MACHINE = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENOTDIR,
}

_SECONDS = 2.0  # to tidy up
_TRACKER_SECONDS = 15.0  # a busy machine takes back slowly what the others held
_POLL = 0.05
_ending = threading.Event()


# --- a program of ours


def run_main(main: Callable[[], None]) -> None:
    """Run a program's `main`; bad input, or a disk that cannot be written, is one line on stderr and exit status 2, Ctrl-C is 130."""
    from rlvr_debug.errors import InputError

    if parent := os.environ.get(PARENT):
        threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    # of the objects that imports make, nearly all stay: to search them as often as Python does by default takes 0.7 s
    # of each job
    gc.set_threshold(10_000)
    try:
        main()
        sys.stdout.flush()
        # Python would look for cycles in all that is left, which takes a second of each job; it goes with the process
        gc.freeze()
    except InputError as error:
        print(f"{_ERROR}{error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # whoever read the output has enough of it, such as `head`; nothing more can be said there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        if error.errno not in _OF_THE_MACHINE:
            raise
        print(f"{_ERROR}{error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def failure(log: Path) -> str | None:
    """Return the line that says why a program of ours failed, by its log; None where it did not fail."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return None
    # accelerate's launcher has more to say after it, and each process says it
    if found := [line for line in lines if line.startswith(_ERROR)]:
        return found[-1]
    broke = any(line.startswith("Traceback ") for line in lines)
    return f"{_ERROR}{log}: {lines[-1]}" if broke else None


def _end_with(parent: int) -> None:
    """End this job when the Snakemake of that process id is gone: nothing writes on after a kill -9."""
    while True:
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            os._exit(1)
        except PermissionError:
            return  # the id belongs to somebody else's process: nothing can be told
        time.sleep(_LOOK)


# --- a program that is waited for


def output_of(words: Sequence[str], name: str, folder: Path | None = None) -> str:
    """Run a program to its end and return what it writes; raise InputError with the last line that it says where it fails."""
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, encoding="utf-8", check=False
    )
    if done.returncode:
        from rlvr_debug.errors import InputError

        said = f"{done.stderr}\n{done.stdout}".strip() or "failed"
        raise InputError(f"{name}: {said.splitlines()[-1].strip()}")
    return done.stdout


def git(*arguments: str, folder: Path) -> str:
    """What this git command writes. Raises InputError with the last line of its error."""
    from rlvr_debug.errors import InputError

    try:
        return output_of(["git", *arguments], f"git {arguments[0]}", folder)
    except FileNotFoundError:
        raise InputError("git: command not found, expected git to be installed") from None
    except ValueError as error:  # an argument that holds NUL, or bytes that are not UTF-8
        raise InputError(f"git {arguments[0]}: {error}, expected text") from None


# --- a program under the guard


@contextmanager
def guarded(
    argv: Sequence[str], log: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program that ends, with all of its group, when this process or the context ends, and yield its guard, whose status is the program's."""
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                # isolated: the guard finds this file and needs nothing else, whatever the program's environment is
                [sys.executable, "-I", __file__, *argv],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        except OSError as error:
            from rlvr_debug.errors import InputError

            raise InputError(f"{argv[0]}: cannot be run: {error.strerror}") from None
        assert process.stdin is not None
        try:
            yield process
        finally:
            process.stdin.close()  # what the guard ends it by
            process.wait()
            # its group outlives a guard that was killed itself
            end_group(process.pid)


def last_line(log: Path) -> str:
    """Return the last line that a program wrote to its log."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


def variables_apart() -> dict[str, str]:
    """Return the environment variables for a program in an environment of its own: of ours it sees this library's sources alone."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}


# --- the guard itself


def _guard() -> None:
    """Run a program in a process group of its own until it ends, or until the pipe from whoever started this guard closes."""
    os.setsid()
    program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_starter, daemon=True).start()
    status = program.wait()
    # here and not in the starter, which a signal may interrupt
    end_group(os.getpgid(0))
    while _ending.is_set():
        signal.pause()
    os._exit(status if status >= 0 else 128 - status)


def _end_with_starter() -> None:
    sys.stdin.buffer.read()
    _ending.set()
    end_group(os.getpgid(0))
    os.kill(os.getpid(), signal.SIGKILL)


def end_group(group: int) -> None:
    """Send SIGTERM to all of a process group but the caller, and soon SIGKILL to those that are left."""
    _signal(group, signal.SIGTERM)
    _wait(group, _SECONDS)
    # not yet what removes the shared memory of the others when they are gone, and then ends
    _signal(group, signal.SIGKILL, b"multiprocessing.resource_tracker")
    _wait(group, _TRACKER_SECONDS)
    _signal(group, signal.SIGKILL)


def _signal(group: int, number: signal.Signals, spared: bytes | None = None) -> None:
    """Signal those of the group whose command line does not hold `spared`."""
    for process in _others(group):
        with suppress(OSError):  # it ended meanwhile
            if spared is None or spared not in (process / "cmdline").read_bytes():
                os.kill(int(process.name), number)


def _wait(group: int, seconds: float) -> None:
    """Wait until the caller is alone in the group, but no longer than that."""
    deadline = time.monotonic() + seconds
    while _others(group) and time.monotonic() < deadline:
        time.sleep(_POLL)


def _others(group: int) -> list[Path]:
    """Return the folders in /proc of those that run in the group, beside the caller."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            # after the name, which may hold anything: state, parent, group
            stat = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(stat[2]) == group and stat[0] != "Z" and int(process.name) != os.getpid():
            found.append(process)
    return found


if __name__ == "__main__":
    _guard()

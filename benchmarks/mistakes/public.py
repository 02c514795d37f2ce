"""How often `diagnose` is right on public logs of runs that nobody planted anything in.

    python -m benchmarks.mistakes.public [--logs FOLDER]

public.csv has each log's source, its label (written before it was diagnosed for the first time) and two answers: the first
one and today's. Logs without a first one were diagnosed once, after all that the others asked for was mended. The logs are
others' and lie in no repository of ours: with --logs, a folder of them by the names in the first column, today's answers
are written.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmarks.mistakes.kinds import HERE
from lab.tables import markdown
from rlvr_debug.diagnosis.rank import diagnose
from rlvr_debug.errors import InputError
from rlvr_debug.files import write_text

PUBLIC = HERE / "public.csv"
RUNS = ("first", "now")
_RISES = {True: "yes", False: "no", None: "too few"}


@dataclass(frozen=True)
class Public:
    """A public log. rises: whether its reward does, `yes`, `no` or `too few` rows. causes: any is right, none where nobody found one.

    said: by run, `first` and `now`, what was said of `rises` (`unread` for a log without a reward that was read) and the
    cause that stood first, "" for none.
    """

    name: str
    framework: str
    rises: str
    causes: tuple[str, ...]
    said: Mapping[str, tuple[str, str]]


def read_public() -> list[Public]:
    table = pd.read_csv(PUBLIC, dtype=str, keep_default_na=False)
    return [
        Public(
            row["log"],
            row["framework"],
            row["rises"],
            tuple(row["causes"].split()),
            {run: (row[f"{run}_rises"], row[f"{run}_cause"]) for run in RUNS},
        )
        for row in table.to_dict("records")
    ]


def counts(logs: Sequence[Public], run: str) -> dict[str, tuple[int, int]]:
    """Return by what is counted of how many logs it is so, and of how many it could be. run: of RUNS."""

    def of(these: Iterable[Public], right: Iterable[bool]) -> tuple[int, int]:
        return sum(right), len(list(these))

    learns = [each for each in logs if each.rises == "yes"]
    known = [each for each in logs if each.causes]
    unknown = [each for each in logs if not each.causes and each.rises == "no"]
    return {
        "read, with their rewards": of(logs, (x.said[run][0] != "unread" for x in logs)),
        "whether the reward rises is right": of(logs, (x.said[run][0] == x.rises for x in logs)),
        "a run that learns is blamed": of(learns, (bool(x.said[run][1]) for x in learns)),
        "the known cause stands first": of(known, (x.said[run][1] in x.causes for x in known)),
        "another one stands first": of(
            known, (x.said[run][1] not in ("", *x.causes) for x in known)
        ),
        "a cause is named where nobody knows one": of(
            unknown, (bool(x.said[run][1]) for x in unknown)
        ),
    }


def public_table() -> str:
    """Return the page's table: what was said at first, what after the mends, and what of logs that nothing was mended on."""
    logs = read_public()
    mended, fresh = ([x for x in logs if bool(x.said["first"][0]) == old] for old in (True, False))
    columns = [counts(mended, "first"), counts(mended, "now"), counts(fresh, "now")]
    rows = (
        (what, *(f"{a} of {of}" for a, of in (each[what] for each in columns)))
        for what in columns[0]
    )
    head = f"| first run on {len(mended)} logs | now | once on {len(fresh)} others"
    return markdown(head, rows)


def _said(path: Path) -> dict[str, str]:
    """Return what is said of a log, as the table has it."""
    try:
        found = diagnose(path)
    except InputError:
        return {"rows": "", "logged": "", "now_rises": "unread", "now_cause": ""}
    return {
        "rows": str(len(found.log.steps)),
        "logged": " ".join(name for name in found.log.sources if name != "step"),
        "now_rises": _RISES[found.learns] if found.log.has("reward") else "unread",
        "now_cause": found.ranked[0].slug if found.stands_out else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--logs", type=Path)
    folder = parser.parse_args().logs
    if folder:
        table = pd.read_csv(PUBLIC, dtype=str, keep_default_na=False)
        paths = [next(folder.glob(f"{name}.*"), folder / name) for name in table["log"]]
        table.update(pd.DataFrame([_said(path) for path in paths]))
        write_text(PUBLIC, table.to_csv(index=False, lineterminator="\n"))
    print(public_table())


if __name__ == "__main__":
    main()

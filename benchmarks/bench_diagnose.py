"""diagnose, rldoctor 0.2.0 and rlprobe 0.1.0 on the logs of tests/logs.

    python -m benchmarks.bench_diagnose [--logs tests/logs] [--write docs/diagnose.md]

The other two run in an environment of their own (envs/peers.txt); benchmarks/peer_findings.yaml says which
hypotheses their findings stand for. Prints a table, and writes it between the marks of a page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.make_logs import LOGS
from rlvr_debug.checkout import ROOT
from rlvr_debug.diagnosis.rank import diagnose
from rlvr_debug.files import write_text
from rlvr_debug.processes import variables_apart
from rlvr_debug.venvs import build_venv

__all__ = [
    "Said",
    "hypotheses_of",
    "ours",
    "rldoctor",
    "rlprobe",
    "table",
]

_PROBLEMS = ("CRITICAL", "WARNING")


@dataclass(frozen=True)
class Said:
    """What a tool said of a log: findings, the worst first; hypotheses, in that order; or why nothing."""

    findings: tuple[str, ...]
    hypotheses: tuple[str, ...]
    failed: str = ""

    def rank(self, right: Sequence[str]) -> int:
        """The place of the first right hypothesis, from 1; 0 for none."""
        places = [place for place, slug in enumerate(self.hypotheses, 1) if slug in right]
        return min(places, default=0)


def hypotheses_of(tool: str, findings: Sequence[str]) -> tuple[str, ...]:
    path = ROOT / "benchmarks" / "peer_findings.yaml"
    known = yaml.safe_load(path.read_text(encoding="utf-8"))[tool]
    return tuple(dict.fromkeys(slug for name in findings for slug in known[name]))


def ours(folder: Path) -> Said:
    found = diagnose(folder, gpus=0)
    slugs = tuple(each.slug for each in found.ranked)
    checks = tuple(f"{each.slug} ({', '.join(each.checks) or 'unseen'})" for each in found.ranked)
    return Said(checks, slugs)


def _run(command: Sequence[str]) -> tuple[str, str]:
    """Standard output, and the last line of the error if there was one."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=variables_apart(),
        timeout=120,
        check=False,
    )
    if done.returncode:
        return "", (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
    return done.stdout, ""


def rldoctor(folder: Path, python: Path) -> Said:
    """Its warnings and critical findings, the critical ones first."""
    command = [str(python.parent / "rl-doctor"), "diagnose", str(folder / "trainer_state.json")]
    text, failed = _run([*command, "--format", "json", "--no-color"])
    if failed:
        return Said((), (), failed)
    found = json.loads(text)["findings"]
    names = [f["detector"] for level in _PROBLEMS for f in found if f["severity"] == level]
    return Said(tuple(names), hypotheses_of("rldoctor", names))


def rlprobe(folder: Path, python: Path) -> Said:
    """All its findings, as it orders them."""
    text, failed = _run([str(python), "-m", "benchmarks.peer_rlprobe", str(folder)])
    if failed:
        return Said((), (), failed)
    names = [f["signature_id"] for f in json.loads(text) if f["severity"] != "info"]
    return Said(tuple(names), hypotheses_of("rlprobe", names))


def table(found: Mapping[str, tuple[Said, Said, Said]]) -> str:
    """Markdown: a row per log, and how often each tool is right."""
    head = "| planted | ours first | rank of the right one | rldoctor | rlprobe |"
    lines = [head, "| --- | --- | --- | --- | --- |"]
    for name, (mine, *others) in found.items():
        right = LOGS[name].right
        first = mine.hypotheses[0] if mine.hypotheses else "nothing"
        place = str(mine.rank(right) or "not ranked") if right else "-"
        cells = [_cell(each, right) for each in others]
        lines.append(f"| {name} | {first} | {place} | {' | '.join(cells)} |")
    planted = {name: said for name, said in found.items() if LOGS[name].right}
    healthy = {name: said for name, said in found.items() if not LOGS[name].right}
    lines.append("")
    for index, tool in enumerate(("diagnose", "rldoctor 0.2.0", "rlprobe 0.1.0")):
        ranks = [said[index].rank(LOGS[name].right) for name, said in planted.items()]
        right_first = sum(
            _first_right(said[index], LOGS[name].right, index) for name, said in planted.items()
        )
        alarms = sum(bool(said[index].findings) for said in healthy.values())
        lines.append(
            f"- {tool}: the right hypothesis first in {right_first} of {len(planted)}, named at all in "
            f"{sum(map(bool, ranks))}; says something of {alarms} of {len(healthy)} healthy runs."
        )
    return "\n".join(lines)


def between(page: str, mark: str, text: str) -> str:
    """The page with this text between its two marks."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"


def _first_right(said: Said, right: Sequence[str], index: int) -> bool:
    """Of ours, the first hypothesis; of the others, any that the first finding stands for."""
    if not index:
        return said.rank(right) == 1
    tool = ("", "rldoctor", "rlprobe")[index]
    return any(slug in right for slug in hypotheses_of(tool, said.findings[:1]))


def _cell(said: Said, right: Sequence[str]) -> str:
    if said.failed:
        return f"fails: {said.failed}"
    named = " (names it)" if right and said.rank(right) else ""
    return (", ".join(said.findings) or "nothing") + named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--logs", type=Path, default=ROOT / "tests" / "logs")
    parser.add_argument("--write", type=Path, help="a page with the marks of this table")
    args = parser.parse_args()
    python = build_venv("peers")
    names = [name for name in LOGS if (args.logs / name).is_dir()]
    found = {
        name: (
            ours(args.logs / name),
            rldoctor(args.logs / name, python),
            rlprobe(args.logs / name, python),
        )
        for name in names
    }
    text = table(found)
    print(text)
    print()
    for name, (mine, *_) in found.items():
        print(f"{name}: {'; '.join(mine.findings) or 'nothing'}")
    if args.write:
        write_text(args.write, between(args.write.read_text(encoding="utf-8"), "logs", text))


if __name__ == "__main__":
    main()

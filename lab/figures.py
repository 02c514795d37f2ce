"""Tables of figures for README.md and docs/, made of the results that are committed. figures.yaml has their words.

Studies are read from git's HEAD: in the working tree, `make run` on another processor leaves other figures.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from scipy import stats

from benchmarks.check.blind import LAST_ROUNDS, blind_totals, read_labels
from benchmarks.mistakes.public import counts, public_table, read_public
from lab.tables import markdown
from rlvr_debug.causes import in_order, variant_names
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import parse_table, read_yaml
from rlvr_debug.processes import git
from rlvr_debug.verdicts.looks import looked
from rlvr_debug.verdicts.rule import Bar, arm_table

_WORDS: Mapping[str, Any] = read_yaml(ROOT / "lab" / "figures.yaml")
_GAIN = ("gain", "gain_low", "gain_high")
_EFFECT = ("effect", "ci_low", "ci_high")


def committed(path: str) -> str:
    """Return a file as git's HEAD has it, or as it lies here where there is no repository."""
    try:
        return git("show", f"HEAD:{path}", folder=ROOT)
    except InputError:
        return (ROOT / path).read_text(encoding="utf-8")


def _table(path: str, key: str) -> pd.DataFrame:
    """Return a study's table, by the names in that column."""
    return pd.read_csv(io.StringIO(committed(path))).set_index(key, drop=False)


def _arms(place: str) -> pd.DataFrame:
    return _table(f"{place}/tables/arms.csv", "arm")


def _verdicts(place: str) -> pd.DataFrame:
    return _table(f"{place}/tables/verdicts.csv", "hypothesis")


def _interval(row: Any, keys: Sequence[str] = _GAIN, form: str = ".2f") -> str:
    value, low, high = (f"{float(row[key]):{form}}".replace("-0.00", "0.00") for key in keys)
    return f"{value} [{low}, {high}]"


def _of(table: pd.DataFrame, name: str, keys: Sequence[str]) -> str:
    return _interval(table.loc[name], keys) if name in table.index else "not run"


# --- how often it is right


def _logged() -> list[list[str]]:
    """Return rows of `right_table`: diagnose on runs of others, when they were new (benchmarks.mistakes.score)."""
    rows = [row.strip("| ").split(" | ") for row in mistakes_table().splitlines()]
    new = [row for row in rows if row[0].endswith("when new")]
    words = ("{} TRL runs by authors who knew the causes' names alone", "{} more, after the mends")
    return [[w.format(r[1]), f"the cause of {r[2]}", r[3]] for w, r in zip(words, new, strict=True)]


def _benchmark(place: str) -> pd.DataFrame:
    return pd.read_csv(ROOT / "benchmarks" / place, keep_default_na=False)


def _checked(name: str) -> pd.DataFrame:
    return pd.read_csv(ROOT / "benchmarks" / "check" / "results" / f"{name}.csv")


def _flagged(name: str) -> str:
    scripts = _checked(name)
    return f"{scripts['first'].notna().sum()} of {len(scripts)}"


def _outsiders() -> list[list[str]]:
    """Return rows of `right_table`: the check on the last outsiders' scripts, when it ran on them once."""
    rows = []
    for processes, words in _WORDS["outsiders"].items():
        labels = [
            label
            for label in read_labels()
            if label.processes == processes and label.commit == LAST_ROUNDS[processes - 1]
        ]
        placed, faults, accused, healthy = blind_totals((each, each.first_run) for each in labels)
        low, high = stats.binomtest(placed, faults).proportion_ci(0.95, method="exact")
        right = f"the place of {placed} of {faults} mistakes ({placed / faults:.0%} [{low:.0%}, {high:.0%}])"
        rows.append([words, right, f"{accused} of {healthy}"])
    return rows


def _publicly() -> list[list[str]]:
    """Return rows of `right_table`: diagnose on public logs, on the first ones and once on others."""
    logs = [each for each in read_public() if each.said["first"][0]]
    fresh = [each for each in read_public() if not each.said["first"][0]]
    rows = []
    for words, found in (
        (f"{len(logs)} public logs", counts(logs, "first")),
        (f"{len(fresh)} others, after tuning on those", counts(fresh, "now")),
    ):
        right, of = found["the known cause stands first"]
        blamed, healthy = found["a run that learns is blamed"]
        rows.append([words, f"{right} of {of} known causes", f"{blamed} of {healthy}"])
    return rows


def _studied() -> list[list[str]]:
    """Return rows of `right_table`: studies of cases by people who knew one page, and of our own."""
    cases = _benchmark("faults/outsiders/places.csv")
    failing, healthy = cases[cases["counts"]], cases[cases["kind"] == "healthy"]
    known, unknown = failing[failing["causes"] != ""], failing[failing["causes"] == ""]
    placed, named = failing["place_right"].sum(), known["cause_right"].sum()
    wrong = (unknown["validated"] != "").sum()
    right = (
        f"the place of {placed} of {len(failing)} mistakes; the cause of {named} of the {len(known)} that a hypothesis covers; "
        f"a wrong cause for {wrong} of the {len(unknown)} others (3 at first)"
    )
    blamed, own = (
        f"{healthy['blamed'].sum()} of {len(healthy)}",
        f"the cause of {_blind('top1', 'all')}",
    )
    return [
        ["cases by people who knew only one page", right, blamed],
        ["our own, after tuning on them", own, _blind("false", "all")],
    ]


def _blind(name: str, mode: str) -> str:
    row = _benchmark("faults/results/scores.csv").set_index("mode").loc[mode]
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{row[name]:.0f} of {row[f'{name}_of']:.0f} [{low:.0%}, {high:.0%}]"


def right_table() -> str:
    """Return README's table: how often each command is right, and how often it blames a healthy run, on each set."""
    parts = {
        "`diagnose`": [*_logged(), *_publicly()],
        "`check`": _outsiders(),
        "a study": _studied(),
    }
    # a command stands in its first row
    rows = [
        [command if row is part[0] else "", *row] for command, part in parts.items() for row in part
    ]
    return markdown("| tried on | right, first | healthy runs blamed", rows)


def mistakes_table() -> str:
    return (ROOT / "benchmarks" / "mistakes" / "results.md").read_text(encoding="utf-8").strip()


def reliability_table() -> str:
    return (ROOT / "benchmarks" / "mistakes" / "reliability.md").read_text(encoding="utf-8").strip()


def checks_table() -> str:
    """Return what the check said of the scripts of benchmarks/check."""
    faults = _checked("faults")
    # of the placed ones, those that have a cause and that no variant of the library implements
    counted = faults[
        (faults["placed"] == 1) & faults["named"].notna() & ~faults["name"].isin(variant_names())
    ]
    placed, named = faults["placed"].sum(), int((counted["named"] == 1).sum())
    counts = {
        "flagged": _flagged("settings"),
        "flagged in bfloat16": _flagged("settings-bf16-trl"),
        "remarked": _remarked("settings"),
        "flagged quickstart": _flagged("quickstart"),
        "placed": f"{placed} of {len(faults)}",
        "named": f"{named} of {len(counted)}",
    }
    rows = [(*_WORDS["checks"][name], count) for name, count in counts.items()]
    return markdown("`python -m benchmarks.check.run` | what | scripts", rows)


def _remarked(kind: str) -> str:
    """Count the scripts with a remark other than limits, which is true of nearly all: the tiny model's replies are cut."""
    remarks = _checked(kind)["remarks"].fillna("").str.split("|")
    count = sum(bool(set(names) - {"", "limits"}) for names in remarks)
    return f"{count} of {len(remarks)}"


def blind_table() -> str:
    """Return the benchmark of planted faults, a row for each kind of evidence."""
    columns, modes = ("top1", "top3", "top1_of_all", "false"), _WORDS["modes"].items()
    rows = [[words, *(_blind(name, mode) for name in columns)] for mode, words in modes]
    header = "answer from | right one first | among the first three | of all planted | blames healthy cases"
    return markdown(header, rows)


def located_text() -> str:
    """Return how many planted faults are located, from the first steps alone, in just what is wrong."""
    found = _benchmark("faults/located.csv")
    pairs = zip(found["planted"].str.split(), found["found"].str.split(), strict=True)
    right = sum({*planted} == {*seen} for planted, seen in pairs)
    return f"{right} of {len(found)} planted faults are located in just the stages and settings that are wrong."


# --- what the studies found


def found_text() -> str:
    """Return README's sentence on the released trainer."""
    arms = _arms("results/releases/verifiers-0.1.3")
    return (
        f"Unpatched, held-out reward changes by {_of(arms, 'case', _GAIN)}; with three patches it gains "
        f"{_of(arms, 'control', _GAIN)}."
    )


def released_table() -> str:
    rows = []
    for words, (release, arm) in _WORDS["released"].items():
        row = _arms(f"results/releases/verifiers-{release}").loc[arm]
        greedy = f"{row['gain_greedy']:.2f}".replace("-0.00", "0.00")
        rows.append([words, str(row["seeds"]), _interval(row), greedy])
    return markdown("verifiers 0.1.3 | seeds | sampled | greedy", rows)


def default_table() -> str:
    """Return what the default study and the same study on vLLM came to."""
    both = [_arms("results"), _arms("results/default-vllm")]
    found = [_verdicts("results"), _verdicts("results/default-vllm")]
    rows = [
        [words, *(_of(arms, arm, keys) for arms in both)]
        for asked, keys in (("gains", _GAIN), ("effects", _EFFECT))
        for words, arm in _WORDS[asked].items()
    ]
    for slug in _WORDS["tested"]:
        rows.append([f"`{slug}`", *(_status(table, slug) for table in found)])
    runs = [str(int(arms.loc[arms["trained_as"] == arms.index, "seeds"].sum())) for arms in both]
    return markdown("held-out reward | in process | on vLLM", [*rows, ["trainings", *runs]])


def _status(verdicts: pd.DataFrame, slug: str) -> str:
    if slug not in verdicts.index:
        return "not tested"
    status, confidence = (str(verdicts.loc[slug, key]) for key in ("status", "confidence"))
    return status.replace("_", " ") + (f", {confidence}" if confidence != "none" else "")


def contradiction_table() -> str:
    """Return the KL of 1e5, in our trainer and in the release's own."""
    rows = []
    for trainer, place in _WORDS["exploding"].items():
        arms, runs = _arms(f"results/{place}"), _table(f"results/{place}/tables/runs.csv", "arm")
        for words, arm in _WORDS["exploding_arms"].items():
            own = runs.loc[arm]
            kl = f"{own['kl_max'].max():.3g}" if own["kl_max"].max() > 0 else ""
            norms = f"{own['grad_norm_max'].median():.3g} to {own['grad_norm_max'].max():.3g}"
            rows.append([trainer, words, _of(arms, arm, _GAIN), kl, norms])
    header = "trainer | without the generation prompt | held-out gain | largest KL"
    return markdown(f"{header} | largest gradient norm, median seed to worst", rows)


def full_table() -> str:
    verdicts = _verdicts("results/full")
    rows = []
    for slug in in_order(list(verdicts.index)):
        row = verdicts.loc[slug]
        effect = _interval(row, _EFFECT, "+.2f")
        rows.append([slug, _status(verdicts, slug), f"`{row['arm']}`", effect])
    return markdown("hypothesis | verdict | arm that says most | effect", rows)


def example_text() -> str:
    """Return the rule's verdict on one arm of the committed default study, step by step."""
    runs = parse_table(committed("results/tables/runs.csv")).fillna(
        {"changes": "", "hypothesis": ""}
    )
    bar = looked(Bar.of(0.05, 0.1))
    arms = arm_table(runs, "musique", bar).set_index("arm")
    taken = _WORDS["alone"]
    name = min(taken, key=dict(zip(arms.index, arms["p"], strict=True)).__getitem__)
    alone, control = arms.loc[name], arms.loc["control"]
    spent = 1 / bar.share(alone["seeds"])
    return (
        f"The control gains {control['gain']:.4f} over {control['seeds']} seeds; {taken[name]} it gains "
        f"{alone['gain']:.4f} over {alone['seeds']}. The effect is d = {alone['effect']:.4f} [{alone['ci_low']:.3f}, {alone['ci_high']:.3f}], "
        f"p = {alone['p']:.7f}. The [look](looks.md) at {alone['seeds']} seeds spends 1/{spent:.0f} of alpha, and Holm's correction takes the smallest of five p "
        f"times 5: p' = 5 x {spent:.0f} x {alone['p']:.7f} = {alone['p_holm']:.4f}. Under greedy decoding d is "
        f"{alone['effect_greedy']:.3f}. The case fails: it gains {_interval(control, _EFFECT, '.3f')} less than the control. The check "
        f"finds the mechanism, so `{alone['hypothesis']}` is validated."
    )


# by page and mark
FIGURES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"right": right_table, "found": found_text},
    "docs/diagnose.md": {"reliability": reliability_table},
    "docs/evidence.md": {
        "public": public_table,
        "mistakes": mistakes_table,
        "checks": checks_table,
        "located": located_text,
        "blind": blind_table,
    },
    "docs/studies.md": {
        "released": released_table,
        "default": default_table,
        "contradiction": contradiction_table,
        "full": full_table,
    },
    "docs/verdicts.md": {"example": example_text},
}

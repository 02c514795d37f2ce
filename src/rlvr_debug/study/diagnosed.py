"""The study that would test what a log speaks for: an overlay over params.yaml, checked by loading it."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rlvr_debug.blocks import told
from rlvr_debug.causes import load_hypothesis
from rlvr_debug.diagnosis.rank import Diagnosis
from rlvr_debug.errors import InputError, short
from rlvr_debug.files import replacing, taken
from rlvr_debug.logs.log import Log
from rlvr_debug.study.arms import arm_of, trained_runs, unmapped
from rlvr_debug.study.model import Case, Params
from rlvr_debug.study.params import default_file, load_params, overlaid, parse_params
from rlvr_debug.trainers import load_trainer, trainer_names
from rlvr_debug.trainers.trl import FIELDS

STUDY = "diagnosed"


def trainers_offered() -> list[str]:
    """Return the trainers with which the study of somebody's run can be written."""
    return [name for name in trainer_names() if load_trainer(name).to_fill_in]


def overlay(log: Log, slugs: Sequence[str], trainer: str) -> dict[str, Any]:
    """Return the overlay that tests these hypotheses on a case that departs in the log's learning rate and limit of tokens."""
    usual = load_params(default_file())
    # what it costs is said beforehand; its control is the shipped one: where the user's settings depart from that is no news
    keys: dict[str, Any] = {"study": STUDY, "design": "fixed", "trainer": trainer}
    keys["unnamed"] = False
    keys |= load_trainer(trainer).placeholders
    case: dict[str, Any] = {"faults": []}
    rates = log.series("learning_rate")
    if rates.size and rates.max() >= 0:
        case["training"] = {"learning_rate": float(f"{rates.max():.4g}")}
    if limit := _limit(log):
        case["options"] = {"max_completion_length": limit}
        keys["options"] = {"max_completion_length": 2 * limit}
    keys |= {"case": "mine", "cases": {"mine": case}}
    mine = {**case, "faults": (), "options": case.get("options", {})}
    params = replace(
        usual,
        unnamed=False,
        trainer=trainer,
        case="mine",
        cases={"mine": Case(**mine)},
        options=keys.get("options", {}),
    )
    arms: dict[str, Any] = {
        slug: {
            "arms": {
                a.name: told(arm_of(a, params)) for a in load_hypothesis(slug).arms_on(trainer)
            }
        }
        for slug in slugs
    }
    # of the default study, what is not this one's
    for slug, own in arms.items():
        others = (name for name in usual.arms.get(slug, {}) if name not in own["arms"])
        own["arms"] = {**dict.fromkeys(others), **own["arms"]}
    removed = dict.fromkeys(slug for slug in usual.arms if slug not in arms)
    return {**keys, "hypotheses": {**removed, **arms}}


def _limit(log: Log) -> int:
    """Tokens at which replies are cut, where some were: the most that one has."""
    lengths = log.series("length_max")
    truncated = log.series("truncated")
    if not lengths.size or not truncated.size or truncated.max() <= 0:
        return 0
    return int(np.clip(lengths.max(), 0, 1e6))


def overlay_text(log: Log, slugs: Sequence[str], trainer: str) -> str:
    """Return the file's text, with what to fill in at the top."""
    say = [
        f"# Written from {short(log.place.rsplit('/', 1)[-1])} by diagnose, which ranked, most likely first:",
        *(f"#   {slug}" for slug in slugs),
        "# Fill in: data, environment and base_model of your run (docs/environments.md),",
        f"#   training.learning_rate of a healthy run, until then {load_params(default_file()).training.learning_rate:g}, there and in arms that have it, and",
        f"#   {load_trainer(trainer).to_fill_in}",
    ]
    body = yaml.safe_dump(
        overlay(log, slugs, trainer), sort_keys=False, default_flow_style=None, width=100
    )
    return "\n".join(say) + "\n" + body


def write_overlay(text: str, path: Path) -> Params:
    """Write all of it or nothing, and never over what is there. Return the parameters with it."""
    params = overlaid(default_file(), path, parse_params(text, str(path)))
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
        try:
            # unlike a rename, it fails where the name is taken; the rename to the same file that follows does nothing
            os.link(temporary, path)
        except FileExistsError:
            raise taken(path) from None
    return params


def write_study(found: Diagnosis, limit: int, trainer: str, out: Path) -> str:
    """Write the overlay that tests the first `limit` hypotheses, 0 for all that were ranked, and return what it costs."""
    slugs = [each.slug for each in found.ranked[: limit or None]]
    if not slugs:
        raise InputError(
            f"{out}: not written: no cause was ranked, so there is no study to write; docs/start.md says how to write one by hand"
        )
    params = write_overlay(overlay_text(found.log, slugs, trainer), out)
    left = "".join(f"; {slug}: {why}" for slug, why in unmapped(params).items())
    left += "".join(f"; it does not test {change}" for change in _untested(found, params))
    return f"{out}: a study of {found.timing.text(len(trained_runs(params)))}{left}"


def _untested(found: Diagnosis, params: Params) -> Iterator[str]:
    """Yield the changes to try, as the report says them, for which the study of these causes has no arm."""
    ours = {theirs: name for name, theirs in FIELDS.renamed.items()}
    for each in found.ranked:
        arms = params.arms.get(each.slug, {}).values()
        tested = {name for arm in arms for name in (*arm.training, *arm.options)}
        names = {ours.get(name, name) for name in each.findings[0].check.change}
        if arms and each.change and not names & tested:
            yield each.change

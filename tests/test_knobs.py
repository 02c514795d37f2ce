"""Variants of causes: a knob that is none, and what a check says of a mechanism by their names."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from rlvr_debug.causes import file_of, hypothesis_names
from rlvr_debug.cli import main
from rlvr_debug.errors import InputError
from rlvr_debug.replay import variants
from rlvr_debug.replay.finding import FAILED, NotSeen
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.segments import SEGMENTS
from rlvr_debug.replay.variants import check_knobs, check_names
from rlvr_debug.verdicts.decide import Mechanism, mechanism_of
from tests.check_answer import CAUSES, case_answer
from tests.in_process import called
from tests.small_record import change

Causes = Callable[..., Path]


@pytest.fixture
def causes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Causes]:
    """(slug, old, new) -> the cause's replay.yaml with that changed; those of the others are as they are."""
    for slug in hypothesis_names():
        file = file_of(slug).with_name("replay.yaml")
        if file.exists():
            (tmp_path / "causes" / slug).mkdir(parents=True)
            shutil.copy(file, tmp_path / "causes" / slug)
    monkeypatch.setattr(variants, "file_of", lambda slug: tmp_path / "causes" / slug / "cause.yaml")

    def changed(slug: str, old: str, new: str) -> Path:
        path = tmp_path / "causes" / slug / "replay.yaml"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        variants._replays.cache_clear()
        return path

    yield changed
    variants._replays.cache_clear()


def checked(folder: Path, *words: str) -> CompletedProcess[str]:
    return called(main, "rlvr-debug", "check", "--record", str(folder), *words)


def line_of(path: Path, text: str) -> int:
    lines = path.read_text(encoding="utf-8").splitlines()
    [number] = [n for n, line in enumerate(lines, 1) if text in line]
    return number


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{scale: none}", "{scal: none}", "unknown key 'scal': did you mean 'scale'?"),
        ("{epsilon: 1.0e-8}", "{epsilon: tiny}", "key 'epsilon' is text 'tiny', expected a number"),
        ("{then: clipped to 1}", "{then: cliped to 1}", "key 'then' is text 'cliped to 1', expected one of"),
        ("{biased: true}", "{biased: 1}", "key 'biased' is 1, expected true or false"),
    ],
)  # fmt: skip
def test_a_knob_that_a_segment_has_not_is_named_with_its_line(
    old: str, new: str, said: str, causes: Causes
) -> None:
    path = causes("advantage-scaling", old, new)
    [knobs] = [segment.knobs for segment in SEGMENTS if segment.name == "advantages"]
    place = re.escape(f"{path}:{line_of(path, new)}: {said}")
    with pytest.raises(InputError, match=f"^{place}"):
        check_knobs("advantages", knobs)


def test_a_segment_that_could_not_be_computed_is_its_finding_and_the_others_answer(
    folder: Path, causes: Causes
) -> None:
    path = causes("advantage-scaling", "{scale: none}", "{scal: none}")
    done = checked(folder, "--json")
    assert (done.returncode, done.stderr) == (2, "")
    segments = {each["segment"]: each for each in json.loads(done.stdout)["segments"]}
    failed = segments.pop("advantages")
    assert (failed["status"], failed["note"].startswith(f"{path}:")) == (FAILED, True)
    assert {each["status"] for each in segments.values()} <= {"agrees", "none", "not seen"}
    # in words it is no agreement
    done = checked(folder)
    assert done.returncode == 2
    assert "  advantages  could not be computed  " in done.stdout
    assert "Nothing was found; could not be computed: advantages" in done.stdout


def test_what_a_reference_raises_is_said_with_its_line_and_that_of_the_variant(
    folder: Path, causes: Causes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("by nothing")

    path = causes("advantage-scaling", "variants:", "variants:\n")
    change(folder, lambda told: told["settings"].update(kl_beta=9.0))
    monkeypatch.setattr("rlvr_debug.replay.segments.loss._far", broken)
    done = checked(folder, "--json")
    segments = {each["segment"]: each for each in json.loads(done.stdout)["segments"]}
    first = next(each for each in variants.variants_of("loss") if not each.fitted)
    note = segments["loss"]["note"]
    assert (done.returncode, segments["loss"]["status"]) == (2, FAILED)
    assert note.startswith(f"{path.parents[1]}/{first.cause}/replay.yaml:")
    assert f": '{first.name}' failed: " in note
    assert re.search(r"segments/loss\.py:\d+: ZeroDivisionError: by nothing$", note)
    assert segments["gradient"]["status"] == "agrees"


def test_every_value_that_a_knob_may_have_can_be_computed(record: Record) -> None:
    """What a type lists and no reference knows would be found by whoever writes it into a cause."""
    network, tried = Network(record), 0
    for segment in SEGMENTS:
        kinds: Any = segment.knobs.kinds
        values = [(name, value) for name, kind in kinds.items() for value in _values(kind)]
        for instance in segment.instances(record, network):
            for name, value in values:
                with suppress(NotSeen):
                    instance.compare(**{name: value})
                    tried += 1
    assert tried > 300


def _values(kind: Any) -> list[Any]:
    """Return what a knob may be, as far as its type lists it."""
    schema = TypeAdapter(kind).json_schema()
    listed = [each.get("enum", [each.get("const")]) for each in (schema, *schema.get("anyOf", ()))]
    return [value for values in listed for value in values if value]


# --- mechanisms


@given(st.sets(st.sampled_from(CAUSES)))
def test_a_mechanism_is_there_where_its_name_is_and_nowhere_else(present: set[str]) -> None:
    answer = case_answer(*present)
    found = {slug: mechanism_of(slug, answer).present for slug in CAUSES}
    assert found == {slug: slug in present for slug in CAUSES}


@pytest.mark.parametrize("slug", CAUSES)
def test_what_was_not_seen_is_not_absent(slug: str) -> None:
    found = mechanism_of(slug, case_answer(unseen=True, said="no such seam"))
    assert found.present is None
    assert "was not seen: no such seam" in found.text
    assert mechanism_of(slug, {}).present is None


def deviating(segment: str, *by: str, cause: str = "gradient-explosion") -> dict[str, Any]:
    """An answer in which that segment deviates as by these of the cause's, or as by nothing known."""
    answer, names = case_answer(), [{"name": name, "cause": cause} for name in by]
    [own] = [each for each in answer["segments"] if each["segment"] == segment]
    own.update(status="deviates", note="40 of 154 tokens", names=names)
    return answer


OF_LOSS = ("loss-aggregation", "kl-penalty", "token-masking", "gradient-explosion")


@pytest.mark.parametrize(
    ("segment", "present"),
    [
        ("loss mask", {"token-masking": True, "context-truncation": None, "hidden-context": False}),
        ("loss", {**dict.fromkeys(OF_LOSS), "hidden-context": False}),
    ],
)
def test_what_nothing_known_gives_shows_the_cause_that_claims_any_deviation_and_not_the_nearest(
    segment: str, present: dict[str, bool | None]
) -> None:
    found = {slug: mechanism_of(slug, deviating(segment)) for slug in present}
    assert {slug: each.present for slug, each in found.items()} == present
    told = [each.text for each in found.values() if each.present is None]
    assert all("nothing known gives: 40 of 154 tokens" in text for text in told)


def test_a_known_deviation_that_is_only_near_to_a_cause_neither_shows_it_nor_rules_it_out() -> None:
    for name in ("the ratio is inverted", "the ratio is inverted and halved"):
        said = f"loss deviates as by '{name}', which is not what the hypothesis claims"
        found = mechanism_of("gradient-explosion", deviating("loss", name))
        assert found == Mechanism(None, said)
    both = deviating("loss", "the ratio is inverted", "the ratio is not clipped")
    assert mechanism_of("gradient-explosion", both).present is True


def test_a_deviation_by_another_causes_name_is_no_mechanism_of_this_one() -> None:
    answer = deviating("loss", "the KL is subtracted", cause="kl-penalty")
    assert mechanism_of("kl-penalty", answer).present is True
    assert mechanism_of("loss-aggregation", answer).present is False


@pytest.mark.parametrize("passed", [False, True])
def test_a_consequence_out_of_its_bound_is_a_mechanism(passed: bool) -> None:
    answer = case_answer()
    [limits] = [each for each in answer["consequences"] if each["name"] == "limits"]
    limits["passed"] = passed
    found = mechanism_of("context-truncation", answer)
    assert found.present is not passed
    assert "share 0.25" in found.text
    assert mechanism_of("reward-signal", answer).present is False


def test_a_localiser_has_no_mechanism() -> None:
    assert mechanism_of("multi-step", case_answer()) == Mechanism(None, "")


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"segments": ("optimiser step",)}, "unknown segment 'optimiser step': did you mean"),
        ({"consequences": ("limit",)}, "unknown consequence 'limit': did you mean 'limits'"),
    ],
)
def test_a_causes_file_that_names_what_does_not_exist_is_an_error(
    told: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "_replays", lambda: {"optimizer-no-op": variants._Replay(**told)})
    with pytest.raises(InputError, match=said):
        check_names(["optimizer step"], ["limits"])

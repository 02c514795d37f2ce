"""The report: what it says, in which order, and that whatever it is given stays text."""

import base64
import copy
import gzip
import hashlib
import html.parser
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_debug.causes import in_order, load_hypothesis, phase_of, stages_with
from rlvr_debug.errors import InputError
from rlvr_debug.files import write_text
from rlvr_debug.grpo.settings import DiagnosticSettings
from rlvr_debug.report.page import NOTES
from rlvr_debug.report.rollouts import aligned, shown_rollouts
from rlvr_debug.sampling.alignment import carried, edits
from tests.made_up_study import (
    CAUSE_FOUND,
    REPORT_SETTINGS,
    SETTINGS,
    SLUGS,
    Study,
    recorded,
)
from tests.small import Train

EVIL = "</script><script>alert('&')</script><img src=x onerror=alert(1)><!--"
LIMIT = 10**6  # bytes


class Page(html.parser.HTMLParser):
    """A report as a browser reads it: its text, its scripts by type, and the ids and names of elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str, str]] = []
        self.said: list[str] = []
        self._inside: list[str] = []
        self.feed(page)
        self.text = " ".join(" ".join(self.said).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)
            self.scripts += [(dict(attrs).get("type") or "", "")] if tag == "script" else []

    def handle_endtag(self, tag: str) -> None:
        if self._inside and tag == self._inside[-1]:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.said.append(data)
        elif self._inside[-1] == "script":
            kind, text = self.scripts[-1]
            self.scripts[-1] = (kind, text + data)

    def data(self, name: str) -> Any:
        """What stands in the script element of that id."""
        return json.loads(self.unpacked(name), parse_constant=pytest.fail)

    def unpacked(self, name: str) -> str:
        """What stands packed in the script element of that id."""
        names = [attrs.get("id") for tag, attrs in self.elements if tag == "script"]
        return gzip.decompress(base64.b64decode(self.scripts[names.index(name)][1])).decode()

    def ids(self) -> list[str]:
        return [attrs["id"] or "" for _, attrs in self.elements if "id" in attrs]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study with tables; not to be changed."""
    study = Study(tmp_path_factory.mktemp("results"), CAUSE_FOUND)
    study.tables()
    return study


@pytest.fixture
def other(study: Study, tmp_path: Path) -> Study:
    """A copy of it, to be changed."""
    copied = copy.copy(study)
    copied.results = shutil.copytree(study.results, tmp_path / "results")
    return copied


@pytest.fixture(scope="module")
def written(study: Study) -> str:
    return study.report()


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a study of another trainer and level, in which whatever can be markup is."""
    study = Study(tmp_path_factory.mktemp("strange"), CAUSE_FOUND)
    study.check("hidden-context", said=EVIL)
    for arm in CAUSE_FOUND:
        study.record(arm, [recorded(EVIL, row=EVIL, outcome=EVIL)])
    tables = study.tables({**SETTINGS, "alpha": 0.2})
    for table, column in (("verdicts", "evidence"), ("arms", "changes")):
        told = tables[table].assign(**{column: EVIL})
        told.to_csv(study.results / "tables" / f"{table}.csv", index=False)
    return study.report({**REPORT_SETTINGS, "alpha": 0.2, "case": EVIL, "trainer": "trl"})


@pytest.fixture(scope="module")
def page(written: str) -> Page:
    return Page(written)


# --- what it says


def test_the_first_screen_is_case_answer_how_sure_curve_and_verdicts(page: Page) -> None:
    order = [
        "Study made-up: the case sick",
        "The case sick, GRPO on musique, does not learn in 3 steps on 3 seeds.",
        "Your policy never sees the prompt when the loss is computed.",
        "How sure",
        "hidden-context: validated, confidence",
        "Training reward by step, mean over 3 seeds",
        "hypothesis verdict confidence effect [95 % interval] p",
        "Is it a fix? The original's criteria of success, for",
        "Evidence Every verdict",
    ]
    places = [page.text.index(said) for said in order]
    assert places == sorted(places)
    first = page.text[places[-3] : places[-2]]
    assert [slug for slug in re.findall(r"[a-z]+(?:-[a-z]+)+", first) if slug in SLUGS] == [
        "hidden-context",
        *("lora-weight-sync", "library-functionality", "kl-penalty"),
    ]


def test_every_hypothesis_has_a_page_with_the_parts_of_the_template(written: str) -> None:
    for slug in SLUGS:
        own = Page(page_of(slug, written))
        parts = [f"{slug}:", "Setup", "Prediction", "Results", "Diagnostics", "Files and logs"]
        parts += ["Observations", "Notes", "Conclusion", "Next steps"]
        places = [own.text.index(part) for part in parts]
        assert places == sorted(places)
        hypothesis = load_hypothesis(slug)
        assert hypothesis.claim in own.text
        assert hypothesis.success in own.text
        assert (hypothesis.answer in own.text) == (slug == "hidden-context")
        others = set(SLUGS) - {slug, *hypothesis.alternatives, *hypothesis.interactions}
        assert not any(f"{other}:" in own.text for other in others)


def page_of(slug: str, written: str) -> str:
    """The part of a report that is about that hypothesis."""
    start = written.index(f'<section class="page hypothesis" id="{slug}">')
    return written[start : written.index("</section>", start)]


def test_a_page_shows_how_the_runs_of_its_own_arms_and_of_case_and_control_went_and_their_files(
    written: str,
) -> None:
    own = page_of("hidden-context", written)
    arms = ["case", "control", "attention-mask", "attention-mask-alone"]
    runs = [(arm, str(seed)) for arm in arms for seed in range(3)]
    assert re.findall(r"<tr><td>([^<]+)<td>(\d)", own) == runs
    gone = re.findall(rf"<tr><td>({'|'.join(arms)})<td>([a-z]+)<td>([a-z ]+)<td", own)
    assert [arm for arm, _, _ in gone] == arms
    assert {trend for _, trend, _ in gone} <= {"improving", "declining", "oscillating", "stable"}
    for seed in range(3):
        run = f"musique/attention-mask/{seed}"
        assert f'<a href="runs/{run}"><code>results/runs/{run}</code></a>' in own
        assert f'<a href="../logs/train/{run}.log"><code>logs/train/{run}.log</code></a>' in own


def test_a_page_links_what_runs_left_and_has_the_owner_s_notes_as_text_and_tokens_of_probability_0(
    written: str, other: Study
) -> None:
    run = other.results / "runs" / "musique" / "attention-mask" / "0"
    assert "tensorboard" not in written
    assert written.count("beside <code>results/</code>, stands here") == len(SLUGS)
    (run / "trackers" / "wandb" / "offline-run-7").mkdir(parents=True)
    write_text(run / "trackers" / "rlvr-debug" / "events.out.tfevents.1", "")
    (run / "adapter").mkdir()
    notes = other.results.parent / NOTES / "hidden-context.md"
    notes.parent.mkdir()
    impossible = recorded()
    impossible["trained"]["trainer"] = [None, float("-inf"), float("nan")]
    other.record("case", [impossible])
    notes.write_text("Seen on *two* clusters.\n\n<script>alert(1)</script>\n")
    page = other.report()
    own = page_of("hidden-context", page)
    place = "results/runs/musique/attention-mask/0"
    for path in ("adapter", "trackers", "trackers/wandb/offline-run-7"):
        address = f"{place}/{path}"
        assert f'<a href="{address.removeprefix("results/")}"><code>{address}</code></a>' in own
    assert f"<code>wandb sync {place}/trackers/wandb/offline-run-7</code>" in own
    assert f"<code>tensorboard --logdir {place}/trackers</code>" in own
    assert f"{place}/model.safetensors" not in own
    said = "Seen on *two* clusters.\n\n&lt;script&gt;alert(1)&lt;/script&gt;"
    assert f'<p class="notes">{said}</p>' in own
    assert page.count('class="notes"') == 1
    # a token of probability 0 breaks nothing
    [rollout] = Page(page).data("rollouts-data")["arms"][0]["rollouts"]
    assert rollout["trainer"] == [None, "-inf", "nan"]


def test_the_order_of_tests_has_phase_priority_prerequisites_and_cost(page: Page) -> None:
    text = page.text[page.text.index("The order of tests") :]
    order = in_order(SLUGS)
    places = [
        text.index(f" {phase_of(slug, SLUGS)} {n} {slug} ") for n, slug in enumerate(order, 1)
    ]
    assert places == sorted(places)
    assert "1 1 lora-weight-sync H06 critical" in text


def test_every_chart_is_drawn_from_a_spec_and_says_how_to_read_it(page: Page) -> None:
    drawn = [a["data-chart"] for _, a in page.elements if "data-chart" in a]
    assert sorted(filter(None, drawn)) == sorted(page.data("specs"))
    assert {"answer", "effects", "learning", "hidden-context-reward"} <= set(drawn)
    assert page.text.count("How to read it: ") == len(drawn)
    assert all(a.get("aria-label") for _, a in page.elements if "data-chart" in a)


def test_arms_are_told_apart_without_colour(page: Page) -> None:
    spec = json.dumps(page.data("specs")["answer"])
    dashes = re.findall(r'"strokeDash": \{.*?"range": (\[\[.*?\]\])', spec)
    assert dashes
    for found in dashes:
        assert len({str(dash) for dash in json.loads(found)}) == 3


def test_no_number_that_is_none_is_shown(page: Page) -> None:
    assert not re.search(r"(?<!\w)[+-]?(nan|inf)(?!\w)", page.text, re.IGNORECASE)


def test_every_link_leads_to_a_place_in_the_page(page: Page) -> None:
    places = page.ids()
    assert len(places) == len(set(places))
    links = [attrs["href"] or "" for tag, attrs in page.elements if tag == "a"]
    assert len(links) > 20
    inside = [link for link in links if link.startswith("#")]
    assert {link.removeprefix("#") for link in inside} <= set(places)
    # beside it are the study's own files, and nothing else
    files = set(links) - set(inside)
    assert all(re.fullmatch(r"(runs|\.\./logs)/[a-z0-9./-]+", link) for link in files)


def test_it_is_the_same_bytes_when_written_again(study: Study, written: str) -> None:
    assert study.report() == written


# --- nothing of it runs, and nothing is loaded


def test_it_loads_nothing(page: Page) -> None:
    for tag, attrs in page.elements:
        assert not {"src", "srcset", "data", "action", "poster", "background"} & set(attrs)
        assert (attrs.get("href") or "#").startswith("#") or tag == "a"
    assert "http" not in page.text
    assert "$schema" not in json.dumps(page.data("specs"))


def test_no_script_may_run_but_those_of_the_report(page: Page) -> None:
    [policy] = [a["content"] for _, a in page.elements if a.get("http-equiv")]
    assert policy is not None
    assert "default-src 'none'" in policy
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    ran = [text for kind, text in page.scripts if kind != "application/gzip"]
    assert len(ran) == 3
    # of what is packed, what charts.js runs
    ran.append(page.unpacked("vega"))
    for text in ran:
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in allowed
    assert len(allowed) == len(ran)
    assert "unsafe-eval" not in policy
    assert policy.count("unsafe-inline") == policy.count("style-src 'unsafe-inline'") == 1


def test_whatever_it_is_given_is_text_and_neither_markup_nor_script(strange: str) -> None:
    page = Page(strange)
    assert len(page.scripts) == 3 + 3
    assert "img" not in {tag for tag, _ in page.elements}
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert page.text.count(" ".join(EVIL.split())) > 10
    shown = page.data("rollouts-data")
    assert shown["texts"]["7"] == EVIL
    assert shown["arms"][0]["rollouts"][0]["outcome"] == EVIL
    # as HTML's parsers see it, which know a script's end by its letters alone
    assert strange.lower().count("</script") == 3 + 3
    assert "<!--" not in strange


def test_the_trainer_is_said_first_and_the_interval_is_the_one_that_was_computed(
    strange: str,
) -> None:
    text = Page(strange).text
    assert f"Study made-up: the case {EVIL}, trainer trl" in text
    assert "80 % interval" in text
    assert "95 %" not in text


# --- rollouts


def test_the_case_and_the_control_come_first_and_no_run_comes_twice(page: Page) -> None:
    arms = [arm["arm"] for arm in page.data("rollouts-data")["arms"]]
    assert arms[:2] == ["case", "control"]
    assert len(arms) == len(set(arms)) == len(CAUSE_FOUND)


def test_a_study_that_recorded_no_rollouts_says_so_and_has_no_viewer(other: Study) -> None:
    for arm in CAUSE_FOUND:
        other.record(arm, [])
    page = Page(other.report())
    assert "This study recorded no rollouts" in page.text
    assert "viewer" not in page.ids()


def test_rollouts_of_the_first_and_the_last_recorded_step_are_shown(tmp_path: Path) -> None:
    study = Study(tmp_path, CAUSE_FOUND)
    study.record("case", [recorded(step=step, rollout=b) for step in (1, 20, 40) for b in (0, 1)])
    shown = shown_rollouts(tmp_path, study.tables())
    assert [(r["step"], r["rollout"]) for r in shown["arms"][0]["rollouts"]] == [
        *((1, 0), (1, 1)),
        *((40, 0), (40, 1)),
    ]


def test_long_rollouts_are_left_out_before_the_page_is_too_large(tmp_path: Path) -> None:
    """Two of the longest that fit: what comes after them is left out, however short."""
    study = Study(tmp_path, CAUSE_FOUND)
    many, one = 15_000, recorded()
    for name in ("sampled", "trained"):
        one[name] = {
            column: None if values is None else (values * many)[:many]
            for column, values in one[name].items()
        }
        one[name]["ids"] = list(range(many))
        one[name]["text"] = [f" word-{number}" for number in range(many)]
    for arm in ("case", "control"):
        study.record(arm, [one, one | {"rollout": 1}])
    study.tables()
    text = study.report()
    page = Page(text)
    shown = page.data("rollouts-data")
    kept = [(arm["arm"], r["rollout"]) for arm in shown["arms"] for r in arm["rollouts"]]
    assert kept == [("case", 0), ("control", 0)]
    assert shown["left_out"] == len(CAUSE_FOUND)
    assert f"{len(CAUSE_FOUND)} rollouts are left out here for their length" in page.text
    assert len(text.encode()) < LIMIT


@pytest.mark.parametrize(
    ("sequence", "changed", "expected"),
    [
        ("", {}, "step, .* trained.loss, .* missing, expected a recorded rollout"),
        ("sampled", 3, "sampled.ids, .* missing"),
        ("trained", {"ids": [7]}, "trained.text, .* trained.trainer missing"),
        ("trained", {**recorded()["trained"], "attention": "11"}, "attention has 2 entries, .* 3"),
        ("sampled", {**recorded()["sampled"], "text": None}, "sampled.text has null, expected 3"),
    ],
)
def test_a_damaged_rollout_is_named_by_its_line(
    sequence: str, changed: Any, expected: str, other: Study
) -> None:
    damaged = {**recorded(), sequence: changed} if sequence else changed
    other.record("control", [recorded(), damaged])
    with pytest.raises(InputError, match=rf"control/0/rollouts.jsonl:2: .*{expected}"):
        other.report()


@pytest.mark.parametrize("name", ["tables/verdicts.csv", "tables/curves.csv", "check.json"])
def test_a_missing_file_is_named(name: str, other: Study) -> None:
    (other.results / name).unlink()
    with pytest.raises(InputError, match=name):
        other.report()


def test_what_nobody_recorded_is_not_made_up() -> None:
    row = recorded()
    row["trained"] |= {"loss": None, "attention": None, "trainer": None}
    found = aligned(row | {"advantage": None})
    assert [found[key] for key in ("loss", "attention", "trainer", "advantage")] == [None] * 4
    assert found["says"] == "The trained sequence is the sampled one, token by token."


ids = st.lists(st.integers(0, 4), max_size=30)


@given(ids, ids)
def test_edits_make_the_trained_sequence_of_the_sampled_one(
    sampled: list[int], trained: list[int]
) -> None:
    made, above, below, kept = list[int](), 0, 0, list[int | None]()
    for kind, a, b, c, d in edits(sampled, trained):
        assert (a, c) == (above, below)
        made += sampled[a:b] if kind == "equal" else trained[c:d]
        kept += range(a, b) if kind == "equal" else [None] * (d - c)
        above, below = b, d
    assert (above, below) == (len(sampled), len(trained))
    assert made == trained
    assert carried(sampled, trained) == kept


def test_the_viewer_says_what_a_planted_fault_did_to_a_rollout(trained: Train) -> None:
    said = {
        "attention-from-loss-mask": r"the policy does not see the prompt",
        "prompt-without-tools": r"\d+ are missing in training, and 0 were added",
        "tool-tokens-trained": r"The loss counts \d+ tokens that the policy did not write",
        "eos-not-trained": r"The loss leaves out \d+ tokens that the policy wrote",
    }

    def says(*faults: str) -> set[str]:
        done = trained(stages_with(faults), diagnostics=DiagnosticSettings(1, 12), steps=1)
        return {aligned(json.loads(json.dumps(row)))["says"] for row in done.rollouts}

    assert says() == {
        "The trained sequence is the sampled one, token by token. "
        "When the loss is computed, the policy sees all of it."
    }
    for fault, expected in said.items():
        assert any(re.search(expected, text) for text in says(fault)), fault

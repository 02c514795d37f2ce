"""Figures that README.md and docs/ tell: they are those of the committed tables."""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from rlvr_debug.causes import in_order
from rlvr_debug.files import parse_table
from rlvr_debug.study.params import load_params
from rlvr_debug.study.resolved import resolve
from rlvr_debug.verdicts.arms import arm_table
from rlvr_debug.verdicts.rule import Bar
from rlvr_debug.verdicts.sequential import looked
from tests.pages import ROOT, pages


@pytest.fixture(scope="module")
def committed() -> Callable[[str], str]:
    """A result as it is committed: the working tree's may be of another machine's run."""

    def read(path: str) -> str:
        command = ["git", "show", f"HEAD:{path}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip("the checkout is no git repository: what is committed is not known")
        return done.stdout

    return read


def csv(text: str) -> dict[str, dict[str, Any]]:
    table = pd.read_csv(io.StringIO(text))
    rows = table.to_dict("records")
    return {
        str(row[table.columns[0]]): {str(key): value for key, value in row.items()} for row in rows
    }


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_readme_s_figures_are_those_of_the_benchmark_and_of_the_study() -> None:
    text = pages()["README.md"]
    scores = pd.read_csv(ROOT / "benchmarks" / "faults" / "results" / "scores.csv")
    whole = scores.set_index("mode").loc["all"]
    held_out = (ROOT / "benchmarks" / "mistakes" / "results.md").read_text(encoding="utf-8")
    scored = {cells[0]: cells[1:] for cells in map(_cells, held_out.splitlines())}
    kinds, first, _, blamed = scored["held out, with the sampler's log-probabilities"][:4]
    without = scored["held out, without them"][1]
    assert f"[without them](docs/diagnose.md#how-often-it-is-right) it is {without}." in text
    flagged, placed = (
        re.findall(rf"^\| `--only {part}` \|[^|]*\| (\d+ of \d+)", pages()["docs/check.md"], re.M)[
            0
        ]
        for part in ("settings", "faults")
    )
    low, high = (f"{whole[key]:.0%}" for key in ("top1_low", "top1_high"))
    rows = {
        "rlvr-debug diagnose": (f"in {first} of {kinds} kinds of mistake", blamed),
        "rlvr-debug check": (f"in {placed} planted faults", flagged),
        "make run OVERLAY": (
            f"in {whole['top1']:.0f} of {whole['top1_of']:.0f} planted faults [{low}, {high}]",
            f"{whole['false']:.0f} of {whole['false_of']:.0f}",
        ),
    }
    for command, (right, wrong) in rows.items():
        [row] = re.findall(rf"^\| `{command}.*$", text, re.MULTILINE)
        assert row.endswith(f"{right} | {wrong} |")
    arms = csv(
        (ROOT / "results/releases/verifiers-0.1.3/tables/arms.csv").read_text(encoding="utf-8")
    )
    for arm, form in (("case", "{:.2f} [{:.2f}, {:.2f}]"), ("control", "+{:.2f} [{:.2f}, {:.2f}]")):
        assert (
            form.format(*(float(arms[arm][k]) for k in ("gain", "gain_low", "gain_high"))) in text
        )


def test_the_effects_of_the_default_study_are_those_of_the_results(
    committed: Callable[[str], str],
) -> None:
    arms, text = csv(committed("results/tables/arms.csv")), pages()["docs/studies.md"]

    def told(arm: str) -> str:
        found = [float(arms[arm][key]) for key in ("effect", "ci_low", "ci_high")]
        return "{:.2f} [{:.2f}, {:.2f}]".format(*found)

    for arm in ("attention-mask-alone", "generation-prompt-alone", "prompt-tools-alone"):
        assert f"loses {told(arm)} |" in text
    assert not {"attention-mask", "generation-prompt"} & {*arms}
    assert "| the case with one of the first two mended | not run |" in text
    seeds = {arm: int(row["seeds"]) for arm, row in arms.items()}
    [alone] = {count for arm, count in seeds.items() if arm.endswith("-alone")}
    named = {"case", "control", "forced-sync", *(arm for arm in seeds if arm.endswith("-alone"))}
    [others] = {count for arm, count in seeds.items() if arm not in named}
    trained = sum(seeds.values()) - seeds["forced-sync"]  # the case's
    most = len(resolve(load_params(ROOT / "params.yaml"), ROOT).trained)
    assert f"chose {trained} trainings of the {most} that it may have" in text
    assert f"{seeds['case']} of the case, {seeds['control']} healthy ones, {alone} of each" in text
    assert f"alone and {others} of each\nother arm" in text
    assert f"gains {float(arms['control']['effect']):.2f} |" in text
    assert f"GSM8K learns under the same defects ({float(arms['gsm8k']['gain']):+.2f})" in text
    assert f"where MuSiQue does not ({float(arms['case']['gain']):+.2f})" in text
    assert float(arms["random-reward"]["gain"]) <= 0
    statuses = {
        slug: row["status"] for slug, row in csv(committed("results/tables/verdicts.csv")).items()
    }
    for slug in ("hidden-context", "sequence-mismatch"):
        assert statuses[slug] == "validated"
        assert f"`{slug}`: validated" in text
    assert {statuses[slug] for slug in ("kl-penalty", "advantage-scaling")} == {"invalidated"}
    assert statuses["lora-weight-sync"] == "not_applicable"


def test_the_figures_of_the_study_on_vllm_are_those_of_its_results(
    committed: Callable[[str], str],
) -> None:
    places = ("results/default-vllm", "results")
    arms = [csv(committed(f"{place}/tables/arms.csv")) for place in places]
    verdicts = [
        csv(committed(f"{place}/tables/verdicts.csv"))["hidden-context"] for place in places
    ]
    rows = (
        ("the case gains", "case", ("gain", "gain_low", "gain_high")),
        ("the control", "control", ("gain", "gain_low", "gain_high")),
        ("random rewards", "random-reward", ("gain", "gain_low", "gain_high")),
        (
            "mending the attention mask in the case",
            "attention-mask",
            ("effect", "ci_low", "ci_high"),
        ),
        ("the attention mask alone costs", "attention-mask-alone", ("effect", "ci_low", "ci_high")),
    )
    for words, arm, keys in rows:
        told = [
            "{:.3f} [{:.3f}, {:.3f}]".format(*(float(own[arm][key]) for key in keys))
            if arm in own
            else "not run"
            for own in arms
        ]
        assert f"| {words} | {told[0]} | {told[1]} |" in pages()["docs/vllm.md"]
    said = [f"{found['status']}, {found['confidence']}" for found in verdicts]
    assert f"| `hidden-context` | {said[0]} | {said[1]} |" in pages()["docs/vllm.md"]


def test_the_figures_of_verifiers_are_those_of_its_studies() -> None:
    arms = {
        f"{release} {arm}": row
        for release in ("0.1.3", "0.1.6.post0")
        for arm, row in csv(
            (ROOT / f"results/releases/verifiers-{release}/tables/arms.csv").read_text(
                encoding="utf-8"
            )
        ).items()
    }

    def row(page: str, name: str) -> list[str]:
        [cells] = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", pages()[page], re.MULTILINE)
        return [cell.strip().replace("**", "") for cell in cells.split("|")]

    def told(*names: str, form: str) -> list[str]:
        return [
            "; ".join(f"{float(arms[arm][key]):{form}}".replace("-0.00", "0.00") for arm in names)
            for key in ("gain", "gain_greedy")
        ]

    def between(arm: str) -> str:
        low, high = (
            f"{float(arms[arm][key]):.2f}".replace("-0.00", "0.00")
            for key in ("gain_low", "gain_high")
        )
        return f" [{low}, {high}]"

    single = {
        "as it is": "0.1.3 case",
        "all patches": "0.1.3 control",
        "attention mask alone": "0.1.3 attention-mask",
        "generation prompt alone": "0.1.3 generation-prompt",
        "tools alone": "0.1.3 prompt-tools",
        "all but attention mask": "0.1.3 attention-mask-alone",
        "all but generation prompt": "0.1.3 generation-prompt-alone",
        "all but tools": "0.1.3 prompt-tools-alone",
        "all patches, random rewards": "0.1.3 random-reward",
        "as it is, on GSM8K": "0.1.3 gsm8k",
        "0.1.6.post0 as it is": "0.1.6.post0 case",
        "0.1.6.post0, all patches": "0.1.6.post0 control",
        "0.1.6.post0, attention mask alone": "0.1.6.post0 attention-mask",
        "0.1.6.post0, all but attention mask": "0.1.6.post0 attention-mask-alone",
        "0.1.6.post0, all patches, random rewards": "0.1.6.post0 random-reward",
    }
    for name, arm in single.items():
        sampled, greedy = told(arm, form=".2f")
        expected = [str(arms[arm]["seeds"]), sampled + between(arm), greedy]
        assert row("docs/verifiers.md", name) == expected, name
    told_again = {
        "the release as it is": "0.1.3 case",
        "with all patches": "0.1.3 control",
        "the release as it is, on GSM8K": "0.1.3 gsm8k",
    }
    for name, arm in told_again.items():
        sampled, greedy = told(arm, form="+.2f")
        found = [cell.removeprefix("+") for cell in row("docs/studies.md", name)]
        assert found == [(sampled + between(arm)).removeprefix("+"), greedy.removeprefix("+")], name
    fixes = ("attention-mask", "generation-prompt", "prompt-tools")
    which = "attention mask; generation prompt; tools"
    assert row("docs/studies.md", f"with one patch alone: {which}") == told(
        *(f"0.1.3 {fix}" for fix in fixes), form=".2f"
    )
    without = [f"0.1.3 {fix}-alone" for fix in fixes]
    assert row("docs/studies.md", f"with all but one: {which}") == told(*without, form=".2f")


def test_the_figures_of_the_original_s_contradiction_are_those_of_its_study() -> None:
    tables = ROOT / "results" / "kl-explodes" / "tables"
    arms = csv((tables / "arms.csv").read_text(encoding="utf-8"))
    runs = pd.read_csv(tables / "runs.csv").groupby("arm")
    text = pages()["docs/studies.md"]
    rows = {
        "beta 0.04": ("case", "{:.0f}", ""),
        "beta 0": ("kl-beta-0", "", ""),
        "mended, beta 0.04": ("generation-prompt", "{:.2f}", ", {:.1f} in the median"),
    }
    for name, (arm, form, median) in rows.items():
        gain = [float(arms[arm][key]) for key in ("gain", "gain_low", "gain_high")]
        group = runs.get_group(arm)
        kl, norm = group["kl_max"], group["grad_norm_max"]
        of_kl = f"{form} to {form}".format(kl.min(), kl.max()) if form else ""
        cells = [
            "{:.2f} [{:.2f}, {:.2f}]".format(*gain),
            of_kl,
            f"{norm.min():.0f} to {norm.max():.0f}{median.format(norm.median())}",
        ]
        [found] = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", text, re.MULTILINE)
        assert [cell.strip() for cell in found.split("|")] == cells, name
    verdicts = csv((tables / "verdicts.csv").read_text(encoding="utf-8"))
    assert verdicts["kl-penalty"]["status"] == "invalidated"
    assert "its figures come from sequence-mismatch" in verdicts["kl-penalty"]["evidence"]


def test_the_figures_of_the_contradiction_on_the_release_are_those_of_its_study() -> None:
    tables = ROOT / "results" / "releases" / "verifiers-0.1.3-kl" / "tables"
    arms = csv((tables / "arms.csv").read_text(encoding="utf-8"))
    runs = pd.read_csv(tables / "runs.csv").groupby("arm")
    kl, norm = runs["kl_max"].max().to_dict(), runs["grad_norm_max"].max().to_dict()
    verdicts = csv((tables / "verdicts.csv").read_text(encoding="utf-8"))
    gain = {arm: float(arms[arm]["gain"]) for arm in ("case", "kl-beta-0", "generation-prompt")}
    ends = [float(arms["generation-prompt"][key]) for key in ("gain_low", "gain_high")]
    said = (
        f"KL up to {kl['case']:.0f} and gradient norms up to "
        f"{norm['case']:.0f} with beta 0.04, at most "
        f"{norm['kl-beta-0']:.2f} with beta 0, the reward flat either way "
        f"({gain['case']:.2f}, {gain['kl-beta-0']:.2f}), mended {gain['generation-prompt']:.2f} "
        f"[{ends[0]:.2f}, {ends[1]:.2f}]; `kl-penalty` is {verdicts['kl-penalty']['status']} there too, "
        f"and five seeds leave sequence-mismatch {verdicts['sequence-mismatch']['status']} "
        f"(p {float(arms['generation-prompt']['p_holm']):.3f})"
    )
    assert said in " ".join(pages()["docs/studies.md"].split())


def test_the_full_study_s_verdicts_are_those_of_its_results() -> None:
    tables = ROOT / "results" / "full" / "tables"
    arms = csv((tables / "arms.csv").read_text(encoding="utf-8"))
    verdicts = csv((tables / "verdicts.csv").read_text(encoding="utf-8"))
    page = " ".join(pages()["docs/hypotheses.md"].split())
    rows = []
    for slug in in_order(list(verdicts)):
        found = verdicts[slug]
        effect = "{:+.3f} [{:+.3f}, {:+.3f}]".format(
            *(float(found[key]) for key in ("effect", "ci_low", "ci_high"))
        )
        status = f"{found['status'].replace('_', ' ')}, {found['confidence']}"
        rows.append(f"| {slug} | {status} | `{found['arm']}` | {effect} |")
    assert " ".join(rows) in page
    verified = verdicts["lora-weight-sync"]["evidence"].rpartition("sampler is ")[2]
    assert f"the verified sampler is {verified}." in page
    costs = [-float(arms["dr-grpo-beta-0"][key]) for key in ("effect", "ci_high", "ci_low")]
    assert "costs it {:.3f} [{:.3f}, {:.3f}]".format(*costs) in page
    gain = [float(arms["with-calculator"][key]) for key in ("gain", "gain_low", "gain_high")]
    healthy = float(arms["calculator-control"]["gain"])
    assert (
        "({:.3f} [{:.3f}, {:.3f}], where the healthy control gains {:.3f})".format(*gain, healthy)
        in page
    )


def test_the_example_of_a_verdict_is_what_the_rule_says_of_the_results(
    committed: Callable[[str], str],
) -> None:
    runs = parse_table(committed("results/tables/runs.csv")).fillna(
        {"changes": "", "hypothesis": ""}
    )
    bar = looked(Bar.of(0.05, 0.1))
    arms = arm_table(runs, "musique", bar).set_index("arm")
    page = pages()["docs/verdicts.md"].partition("**An example**")[2].partition("\n\n")[0]
    page = " ".join(page.split())
    alone, control = arms.loc["generation-prompt-alone"], arms.loc["control"]
    for row in (alone, control):
        assert f"{row['gain']:.4f} (s {row['gain_sd']:.4f}, moderated " in page
    assert f"d = {alone['effect']:.4f}" in page
    assert f"{alone['ci_low']:.3f} to {alone['ci_high']:.3f}" in page
    assert f"p = {alone['p']:.7f}" in page
    spent = 1 / bar.share(alone["seeds"])
    assert f"p' = 5 x {spent:.0f} x {alone['p']:.7f} = {alone['p_holm']:.4f}" in page
    assert f"Greedy, d is {alone['effect_greedy']:.3f}" in page
    fails = "{:.3f} [{:.3f}, {:.3f}]".format(*control[["effect", "ci_low", "ci_high"]])
    assert f"the control gains {fails} more" in page

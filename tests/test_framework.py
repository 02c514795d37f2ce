"""docs/framework.md has every item of the original framework and every package, and each row is held by tests that exist."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache

import pytest

from rlvr_debug.causes import hypothesis_names, load_hypothesis
from rlvr_debug.checkout import ROOT

PAGE = (ROOT / "docs" / "framework.md").read_text(encoding="utf-8")


def rows_of(table: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the tables whose header begins so."""
    header = ""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("| "):
            header = ""
        elif not header:
            header = cells[0]
        elif header == table and not line.startswith("| ---"):
            yield cells


ROWS = list(rows_of("item of the original"))
PACKAGES = list(rows_of("package"))
NAMED = re.compile(r"`tests/(test_\w+\.py)`: `(test_\w+)`")


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_each_item_says_where_it_is_and_names_tests_that_exist(row: list[str]) -> None:
    item, place, held = row
    assert item
    assert place
    assert_held(held)


def assert_held(held: str) -> None:
    """Fails where the cell names anything but tests that exist."""
    named = NAMED.findall(held)
    assert named
    assert NAMED.sub("", held).strip(", ") == ""
    for file, test in named:
        assert test in functions_of(file), f"{file} has no {test}"


def test_every_hypothesis_is_an_item_by_its_number_or_its_name() -> None:
    items = "\n".join(row[0] for row in ROWS)
    for slug in hypothesis_names():
        number = load_hypothesis(slug).number
        said = slug if number == "new" else f"{number} {slug}"
        assert re.search(rf"(^|[ :]){re.escape(said)}\b", items, re.M), said


def test_every_arm_that_the_page_names_is_one() -> None:
    [start] = [n for n, row in enumerate(ROWS) if row[0].startswith("H01 advantage")]
    arms = {arm.name for slug in hypothesis_names() for arm in load_hypothesis(slug).arms}
    told = {
        name
        for row in ROWS[start:]
        if re.match(r"H0\d", row[0])
        for name in re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", row[1])
    }
    assert told - arms == set()
    assert {"verified-sync", "with-tool-tokens", "kl-formula-reversed", "half-context"} <= told


# --- packages


@pytest.mark.parametrize("row", PACKAGES, ids=lambda row: row[0])
def test_each_package_names_rules_of_the_workflow_and_tests_that_exist(row: list[str]) -> None:
    _, rules, does, held = row
    workflow = "".join(path.read_text("utf-8") for path in (ROOT / "workflow").rglob("*.smk"))
    workflow += (ROOT / "workflow" / "Snakefile").read_text("utf-8")
    assert does
    if rules != "none":
        assert re.sub(r"`\w+`", "", rules).strip(", ") == ""
        there = set(re.findall(r"^(?:rule|checkpoint) (\w+):", workflow, re.M))
        assert set(re.findall(r"`(\w+)`", rules)) <= there
    assert_held(held)


def test_every_package_that_a_study_installs_has_a_row_and_a_pin() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = extras["optional-dependencies"]["study"]
    told = {name for row in PACKAGES for name in re.sub(r" \(.*", "", row[0]).split(", ")}
    assert {pin.partition("==")[0] for pin in wanted} | {"vllm", "verifiers", "trl"} <= told
    pins = "".join(path.read_text("utf-8") for path in (ROOT / "envs").glob("*.txt"))
    assert [name for name in told if not re.search(rf"^{name}==", pins, re.M)] == []

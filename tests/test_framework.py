"""docs/framework.md has every item of the original framework, and each of its rows is held by tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from rlvr_debug.causes import hypothesis_names, load_hypothesis
from rlvr_debug.checkout import ROOT

PAGE = (ROOT / "docs" / "framework.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| item "))
]
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

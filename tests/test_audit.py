"""What policies that know everything, or nothing, earn; on real rows and made-up ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlvr_debug.audit import audit_rewards
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.environments import task_of
from rlvr_debug.study.params import load_params

PARAMS = load_params(ROOT / "params.yaml")
DOCS = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")


def audit(name: str, rows: list[Path], tmp_path: Path, **changes: Any) -> dict[str, Any]:
    settings = {**PARAMS.settings(name), **changes}
    audit_rewards(name, settings, ROOT / "models" / "tiny", rows, tmp_path / "audit.json")
    found: dict[str, Any] = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    return found


def means(of: dict[str, Any], parts: list[str]) -> str:
    return " | ".join(f"{of[part]['mean']:.3f}" for part in parts)


def test_on_real_musique_rows_the_oracle_earns_all_and_the_spoiler_loses_on_each(
    real: Path, tmp_path: Path
) -> None:
    found = audit("musique", [real / "musique/rows.jsonl"], tmp_path, top_n=3)
    oracle = found["oracle golden"]
    assert oracle.pop("rows") == 120
    assert {part["lowest"] for part in oracle.values()} == {1.0}
    assert found["oracle_beaten"] == []
    parts = ["reward", "exact_match", "f1", "recall", "precision", "citation", "format"]
    for policy in task_of("musique").policies:
        assert f"| {policy} | {means(found[f'{policy} bm25'], parts)} |\n" in DOCS


def test_an_oracle_is_beaten_by_what_the_reward_pays_and_not_by_a_retriever_that_misses(
    tmp_path: Path,
) -> None:
    asked = {"idx": 0, "title": "Ada", "paragraph_text": "Born in Rome.", "is_supporting": True}
    alike = {"idx": 1, "title": "Who", "paragraph_text": "who wrote it", "is_supporting": False}
    hop = {"id": 1, "question": "who wrote it", "answer": "Rome", "paragraph_support_idx": 0}
    row = {"id": "a", "paragraphs": [asked, alike], "question": "who wrote it?", "answer": "Rome"}
    rest = {"question_decomposition": [hop], "answer_aliases": [], "answerable": True}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row | rest), encoding="utf-8")
    rows = [tmp_path / "rows.jsonl"]
    found = audit("musique", rows, tmp_path, top_n=1, weights={"recall": 1.0})
    assert [found[f"oracle {by}"]["recall"]["mean"] for by in ("bm25", "golden")] == [0, 1]
    assert found["oracle_beaten"] == []
    assert audit("musique", rows, tmp_path, weights={"format": 1.0})["oracle_beaten"] == ["a"]


def test_nobody_earns_a_number_but_by_knowing_it_or_by_chance(real: Path, tmp_path: Path) -> None:
    gsm8k = audit("gsm8k", [real / "gsm8k/rows.jsonl"], tmp_path)
    prepare("calculator", PARAMS.data_settings("calculator"), tmp_path)
    rows = [tmp_path / f"{split}.jsonl" for split in ("train", "heldout")]
    calculator = audit("calculator", rows, tmp_path)
    assert (gsm8k["oracle"]["rows"], calculator["oracle"]["rows"]) == (500, 2000)
    for policy in task_of("gsm8k").policies:
        earned = f"{means(gsm8k[policy], ['correct'])} | {means(calculator[policy], ['correct'])}"
        assert f"| {policy} | {earned} |\n" in DOCS
        if policy not in ("oracle", "answer without retrieval"):
            assert gsm8k[policy]["correct"]["mean"] < 0.03
            assert calculator[policy]["correct"]["mean"] < 0.03
    assert calculator["oracle"]["used_tool"]["lowest"] == 1

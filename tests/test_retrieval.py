from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_debug.data.prepare import read_rows
from rlvr_debug.data.rows import MuSiQueRow, Paragraph
from rlvr_debug.data.synthetic import synthetic_musique
from rlvr_debug.environments.retrieval import RETRIEVERS, bm25, golden


def row_of(*texts: str) -> MuSiQueRow:
    """Paragraphs 10, 20, ... so that an index is not a place; the first one is supporting."""
    paragraphs = tuple(
        Paragraph(10 * (i + 1), "", text, is_supporting=i == 0) for i, text in enumerate(texts)
    )
    return MuSiQueRow("row", paragraphs, "question?", (), "answer", (), True)


words = st.lists(st.sampled_from(["fox", "Red", "the", "a", "blue,", "!", "東京"])).map(" ".join)
texts = words | st.text(max_size=20)
rows = st.lists(texts, min_size=1, max_size=6).map(lambda found: row_of(*found))


@given(rows, texts, st.integers(1, 8), st.sampled_from(sorted(RETRIEVERS)))
def test_only_paragraphs_of_the_row_are_found_each_once_and_no_more_than_asked(
    row: MuSiQueRow, query: str, top_n: int, name: str
) -> None:
    found = RETRIEVERS[name](row, top_n)(query)
    assert set(found) <= {p.idx for p in row.paragraphs}
    assert len(set(found)) == len(found)
    if name == "bm25":
        assert len(found) == min(top_n, len(row.paragraphs))


@given(rows, st.lists(texts, min_size=1, max_size=4))
def test_a_query_finds_the_same_whatever_was_asked_before(
    row: MuSiQueRow, queries: list[str]
) -> None:
    used = bm25(row, 3)
    for query in queries:
        assert used(query) == bm25(row, 3)(query)


@given(rows, texts)
def test_fewer_paragraphs_are_the_first_of_more(row: MuSiQueRow, query: str) -> None:
    assert bm25(row, 2)(query) == bm25(row, 6)(query)[:2]


@given(rows, texts, st.integers(1, 8))
def test_golden_finds_what_supports_whatever_is_asked(
    row: MuSiQueRow, query: str, top_n: int
) -> None:
    assert golden(row, top_n)(query) == [10]


def test_golden_finds_all_that_supports_even_past_top_n() -> None:
    for row in synthetic_musique(5, hops={3: 1}, paragraphs=8, same_relation=0.5, seed=0):
        assert golden(row, 1)("") == list(row.supporting)
        assert len(row.supporting) == 3


def test_the_best_match_comes_first_and_ties_go_to_the_earlier_paragraph() -> None:
    row = row_of("a cat", "a red fox", "a blue fox", "a red red fox", "a dog")
    assert bm25(row, 2)("RED") == [40, 20]
    assert bm25(row, 3)("cat dog") == [10, 50, 20]
    assert bm25(row, 5)("nothing of it") == [10, 20, 30, 40, 50]


def test_a_paragraph_is_found_by_its_title() -> None:
    paragraphs = tuple(
        Paragraph(i, t, "Born in Rome.", False) for i, t in enumerate(["Ada", "Ben"])
    )
    row = MuSiQueRow("row", paragraphs, "question?", (), "answer", (), True)
    assert bm25(row, 1)("Where was Ben born?") == [1]


@pytest.mark.parametrize("query", ["the", "", "!?", "the a of"])
def test_a_query_of_stop_words_does_not_match_a_paragraph_of_stop_words(query: str) -> None:
    assert bm25(row_of("red fox", "the"), 2)(query) == [10, 20]


def test_every_synthetic_hop_is_found_by_its_entity_among_two() -> None:
    # the other one is the paragraph of the hop before, which names the entity
    for row in synthetic_musique(30, hops={2: 1}, paragraphs=8, same_relation=0.5, seed=0):
        for hop in row.question_decomposition:
            title = next(p.title for p in row.paragraphs if p.idx == hop.paragraph_support_idx)
            assert hop.paragraph_support_idx in bm25(row, 2)(f"Who is {title}?")


def test_every_real_paragraph_is_found_first_by_its_own_words(shared: Path) -> None:
    found = total = 0
    for row in read_rows("musique", shared / "musique_ans_dev_sample.jsonl"):
        assert isinstance(row, MuSiQueRow)
        retrieve = bm25(row, 1)
        for p in row.paragraphs:
            if p.is_supporting:
                found += retrieve(f"{p.title} {p.paragraph_text}") == [p.idx]
                total += 1
    assert total > 240
    assert found == total


def test_real_questions_find_more_of_what_supports_than_chance_does(shared: Path) -> None:
    recalls = []
    for row in read_rows("musique", shared / "musique_ans_dev_sample.jsonl"):
        assert isinstance(row, MuSiQueRow)
        found = set(bm25(row, 5)(row.question))
        recalls.append(len(found & set(row.supporting)) / len(row.supporting))
    assert sum(recalls) / len(recalls) > 0.5  # chance: 5 of 20

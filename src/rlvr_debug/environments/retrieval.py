"""Retrieval over one row's own paragraphs: row and query -> paragraph indices, best first."""

from __future__ import annotations

from collections.abc import Callable

import bm25s
import numpy as np

from rlvr_debug.data.rows import MuSiQueRow

__all__ = ["RETRIEVERS", "Retriever", "bm25", "golden"]

Retriever = Callable[[str], list[int]]


def bm25(row: MuSiQueRow, top_n: int) -> Retriever:
    """Okapi BM25 (Lucene's variant, bm25s) over title and text; ties go to the earlier paragraph."""
    corpus = _tokenize([f"{p.title} {p.paragraph_text}" for p in row.paragraphs])
    index = bm25s.BM25()
    index.index(corpus, show_progress=False)

    def retrieve(query: str) -> list[int]:
        scores = _scores(index, query, len(row.paragraphs))
        best = np.argsort(-scores, kind="stable")[:top_n]
        return [row.paragraphs[i].idx for i in best]

    return retrieve


def _tokenize(texts: list[str]) -> list[list[str]]:
    tokens: list[list[str]] = bm25s.tokenize(
        texts, stopwords="en", return_ids=False, show_progress=False
    )
    # bm25s cannot index an empty document; a paragraph of stop words matches no query
    return [words or [""] for words in tokens]


def _scores(index: bm25s.BM25, query: str, count: int) -> np.ndarray:
    words = [word for word in _tokenize([query])[0] if word and word in index.vocab_dict]
    return np.asarray(index.get_scores(words)) if words else np.zeros(count)


def golden(row: MuSiQueRow, top_n: int) -> Retriever:
    """The oracle for debugging: all supporting paragraphs, whatever the query and `top_n`."""
    return lambda query: list(row.supporting)


RETRIEVERS: dict[str, Callable[[MuSiQueRow, int], Retriever]] = {"bm25": bm25, "golden": golden}

"""Retrieval over one row's own paragraphs: row and query -> paragraph indices, best first.

Every strategy is deterministic, and ties go to the earlier paragraph.
"""

import functools
import os
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlvr_debug.checkout import ROOT
from rlvr_debug.environments.musique.rows import MuSiQueRow
from rlvr_debug.errors import InputError, reason

Retriever = Callable[[str], list[int]]
Build = Callable[[MuSiQueRow, int], Retriever]
Encoder = Callable[[Sequence[str]], np.ndarray]  # texts [N] -> unit vectors [N, D]
_Scorer = Callable[[str], np.ndarray]  # query -> scores of the row's paragraphs [N]

STRATEGIES = ("bm25", "semantic", "hybrid", "golden")
_RANK_OFFSET = 60
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_HUB_SECONDS = 5


def build_retrieval(strategy: str, model: str) -> Build:
    """One of STRATEGIES. model: as in `sentence_encoder`; only semantic and hybrid load it."""
    without_model: dict[str, Build] = {"bm25": bm25, "golden": golden}
    if strategy in without_model:
        return without_model[strategy]
    with_model: dict[str, Callable[..., Retriever]] = {"semantic": semantic, "hybrid": hybrid}
    return functools.partial(with_model[strategy], encode=sentence_encoder(model))


def bm25(row: MuSiQueRow, top_n: int) -> Retriever:
    """Okapi BM25 (Lucene's variant, bm25s) over title and text."""
    return _retriever(row, top_n, _bm25_scores(row))


def semantic(row: MuSiQueRow, top_n: int, *, encode: Encoder) -> Retriever:
    """Cosine similarity of sentence embeddings of title and text."""
    return _retriever(row, top_n, _cosines(row, encode))


def hybrid(row: MuSiQueRow, top_n: int, *, encode: Encoder) -> Retriever:
    """Reciprocal rank fusion of bm25 and semantic: the sum of 1 / (60 + rank), ranks from 1.

    Cormack, Clarke and Büttcher, SIGIR 2009. A paragraph without a word of the query has no rank in
    bm25, and nothing from it.
    """
    lexical, meaning = _bm25_scores(row), _cosines(row, encode)

    def scores(query: str) -> np.ndarray:
        matches = lexical(query)
        shares: np.ndarray = _reciprocal_ranks(matches) * (matches > 0)
        shares += _reciprocal_ranks(meaning(query))
        return shares

    return _retriever(row, top_n, scores)


def golden(row: MuSiQueRow, top_n: int) -> Retriever:
    """The oracle for debugging: all supporting paragraphs, whatever the query and `top_n`."""
    return lambda query: list(row.supporting)


def with_noise(row: MuSiQueRow, rate: float, seed: int) -> MuSiQueRow:
    """The row with a share `rate` of its non-supporting paragraphs, and all that support.

    Which ones depends on the seed and the row's id; a higher rate adds to those of a lower one.
    """
    noise = [p.idx for p in row.paragraphs if not p.is_supporting]
    random.Random(f"noise {seed} {row.id}").shuffle(noise)
    dropped = set(noise[round(rate * len(noise)) :])
    return replace(row, paragraphs=tuple(p for p in row.paragraphs if p.idx not in dropped))


@functools.lru_cache(maxsize=1)
def sentence_encoder(model: str) -> Encoder:
    """A sentence-transformers model. model: its folder, from the project's root, or its hub name.

    It runs on the CPU, whatever the training runs on. Raises InputError if it cannot be loaded.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise InputError(
            "semantic retrieval needs the package sentence-transformers, which is not installed: "
            "pip install sentence-transformers, or set retrieval to bm25"
        ) from None
    load = functools.partial(
        SentenceTransformer, device="cpu", model_kwargs={"use_safetensors": True}
    )
    encoder = _loaded(load, model)

    def encode(texts: Sequence[str]) -> np.ndarray:
        # a model can write half a character in JSON, which no tokenizer takes
        whole = [text.encode("utf-8", "replace").decode() for text in texts]
        return np.asarray(encoder.encode(whole, normalize_embeddings=True, show_progress_bar=False))

    return encode


def _loaded(load: Callable[..., Any], model: str) -> Any:
    """Return the model of a folder or, by its name, of the hub's cache or else of the hub."""
    folder = ROOT / model
    if not folder.is_dir() and not _HUB_NAME.fullmatch(model):
        raise InputError(
            f"retrieval_model {model}: no such folder; give one, or owner/model on the hub"
        )
    try:
        return load(str(folder) if folder.is_dir() else model, local_files_only=True)
    except Exception as error:  # of several libraries, with no class in common
        if folder.is_dir():
            raise InputError(
                f"retrieval_model {model}: expected the folder of a sentence-transformers model, "
                f"found {reason(error)}"
            ) from None
    try:
        from huggingface_hub import HfApi

        HfApi().model_info(model, timeout=_HUB_SECONDS)  # else the download's retries take minutes
        return load(model)
    except Exception as error:
        raise InputError(
            f"retrieval_model {model}: no such folder, and the hub does not give the model "
            f"({reason(error)}); download it where the hub can be reached, and name its folder"
        ) from None


def _retriever(row: MuSiQueRow, top_n: int, scores: _Scorer) -> Retriever:
    return lambda query: [row.paragraphs[i].idx for i in _ranked(scores(query))[:top_n]]


def _ranked(scores: np.ndarray) -> np.ndarray:
    return np.argsort(-scores, kind="stable")


def _reciprocal_ranks(scores: np.ndarray) -> np.ndarray:
    shares = np.empty(len(scores))
    shares[_ranked(scores)] = 1 / (_RANK_OFFSET + 1 + np.arange(len(scores)))
    return shares


def _texts(row: MuSiQueRow) -> list[str]:
    return [f"{p.title} {p.paragraph_text}" for p in row.paragraphs]


def _bm25s() -> Any:
    # it imports JAX where that is installed, and JAX takes most of a GPU's memory as it begins
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import bm25s  # Snakemake reads this module's names, and need not wait for SciPy

    return bm25s


def _bm25_scores(row: MuSiQueRow) -> _Scorer:
    index = _bm25s().BM25()
    index.index(_tokenize(_texts(row)), show_progress=False)

    def scores(query: str) -> np.ndarray:
        words = [word for word in _tokenize([query])[0] if word and word in index.vocab_dict]
        return np.asarray(index.get_scores(words)) if words else np.zeros(len(row.paragraphs))

    return scores


def _tokenize(texts: list[str]) -> list[list[str]]:
    tokens: list[list[str]] = _bm25s().tokenize(
        texts, stopwords="en", return_ids=False, show_progress=False
    )
    # bm25s cannot index an empty document; a paragraph of stop words matches no query
    return [words or [""] for words in tokens]


def _cosines(row: MuSiQueRow, encode: Encoder) -> _Scorer:
    paragraphs = encode(_texts(row))
    # equal texts differ in the last bits by their place in the batch, and would not tie
    return lambda query: np.round(paragraphs @ encode([query])[0], 5)

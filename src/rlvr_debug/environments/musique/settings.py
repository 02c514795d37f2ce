"""What params.yaml says of MuSiQue."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le, MinLen
from pydantic import Strict

from rlvr_debug.blocks import Count, Flag, Natural, Share, Text
from rlvr_debug.environments.settings import (
    DataSettings,
    EnvironmentSettings,
    Turns,
    numbers,
    parts,
)


@dataclass(frozen=True, kw_only=True)
class Data(DataSettings):
    """Multi-hop questions, each with paragraphs to search."""

    hops: Annotated[Mapping[str, float], numbers("2", "3", "4")] = field(
        default_factory=lambda: {"2": 0.7, "3": 0.2, "4": 0.1}
    )
    """Share of synthetic questions with 2, 3 and 4 hops."""
    paragraphs: Annotated[int, Strict(), Ge(7), Le(20)] = 12
    """Paragraphs per synthetic row. The tiny tokenizer has single tokens for 20."""
    same_relation: Share = 0.5
    """Share of synthetic distractor paragraphs that carry a relation asked for."""


_PARTS = parts(
    exact_match="The answer is right, but for case, punctuation and articles.",
    f1="F1 of the words of the answer against those of the right one.",
    recall="Share of supporting paragraphs that were retrieved.",
    precision="Share of retrieved paragraphs that are supporting ones.",
    citation="F1 of cited paragraphs against supporting ones.",
    format="The last reply is an answer and a citation, and nothing else.",
)


@dataclass(frozen=True, kw_only=True)
class Settings(EnvironmentSettings):
    """What the model may do on MuSiQue, and its rewards."""

    retrieval: Literal["bm25", "semantic", "hybrid", "golden"] = "bm25"
    """bm25; semantic (sentence embeddings); hybrid (both, by rank); or golden (always the supporting paragraphs; for debugging)."""
    retrieval_model: Annotated[Text, MinLen(1)] = "sentence-transformers/all-MiniLM-L6-v2"
    """For semantic and hybrid, a sentence-transformers model. Its folder, from the project's root, or its name on the hub."""
    top_n: Count = 1
    """Paragraphs that one call returns."""
    max_turns: Turns = 5
    """Replies per rollout, the answer included."""
    max_new_tokens: Count = 24
    noise_rate: Share = 1.0
    """Share of a row's non-supporting paragraphs that can be retrieved."""
    noise_seed: Natural = 0
    """Which paragraphs these are."""
    answer_by: Literal["tags", "complete"] = "tags"
    """tags (<answer> and <cite> in the last reply), or complete (a call of that tool)."""
    hop_factor: Flag = False
    """Multiply the reward by half the number of hops."""
    weights: Annotated[Mapping[str, float], _PARTS] = field(
        default_factory=lambda: {
            "exact_match": 0.9,
            "f1": 1.0,
            "recall": 1.0,
            "precision": 0.4,
            "citation": 0.6,
            "format": 0.1,
        }
    )

    may_lack: ClassVar = (
        *EnvironmentSettings.may_lack,
        *("retrieval_model", "noise_rate", "noise_seed", "answer_by", "hop_factor"),
    )
    changeable: ClassVar = ("retrieval", "top_n")

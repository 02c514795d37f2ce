"""Rows of MuSiQue in the official schema (Trivedi et al., TACL 2022), and some made up for the tiny model's vocabulary.

Each row that is made up is a world of its own: the same question has another answer in another row, so that
nothing can be answered without reading what the tool returns.
"""

import functools
import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import MinLen
from pydantic import PlainValidator, Strict
from pydantic_core import PydanticCustomError

from rlvr_debug.blocks import Flag
from rlvr_debug.data.rows import Row, Text
from rlvr_debug.environments.task import check_shares, draw
from rlvr_debug.errors import InputError, short

_STEMS = ("Al", "Bri", "Cor", "Dan", "El", "Fen", "Gar", "Hol", "Is", "Jor", "Kel", "Lor")
_ENDINGS = ("dora", "mund", "vek", "wyn", "ric", "tas", "nia", "bel", "sor", "gan")
ENTITIES = tuple(stem + ending for stem in _STEMS for ending in _ENDINGS)
RELATIONS = ("mentor", "rival", "spouse", "patron", "neighbor", "employer", "cousin", "tutor")
_FACTS = 3  # in each paragraph
_MOST_HOPS = len(RELATIONS) - _FACTS  # a distractor carries relations that are not asked for


def _label(value: Any) -> int | str:
    if type(value) not in (int, str):
        raise PydanticCustomError("label", "string or integer")
    return value  # type: ignore[no-any-return]


_Index = Annotated[int, Strict()]


@dataclass(frozen=True)
class Paragraph:
    idx: _Index
    title: str
    paragraph_text: Text
    is_supporting: Flag


@dataclass(frozen=True)
class Hop:
    """A single-hop component of a question; `#k` in its question stands for the answer of hop k."""

    id: Annotated[int | str, PlainValidator(_label)]
    question: Text
    answer: Text
    paragraph_support_idx: _Index | None = None


@dataclass(frozen=True)
class MuSiQueRow(Row):
    id: Text
    paragraphs: Annotated[tuple[Paragraph, ...], MinLen(1)]
    question: Text
    question_decomposition: Annotated[tuple[Hop, ...], MinLen(1)]
    answer: Text
    answer_aliases: tuple[str, ...]
    answerable: Flag

    @property
    def hops(self) -> int:
        return len(self.question_decomposition)

    @property
    def components(self) -> tuple[str, ...]:
        return tuple(str(hop.id) for hop in self.question_decomposition)

    @property
    def supporting(self) -> tuple[int, ...]:
        return tuple(p.idx for p in self.paragraphs if p.is_supporting)

    def check(self, where: str) -> None:
        indices = [p.idx for p in self.paragraphs]
        if len(set(indices)) != len(indices):
            raise InputError(f"{where}: key 'paragraphs' repeats an idx, expected each once")
        if not self.supporting:
            raise InputError(f"{where}: no paragraph has is_supporting true, expected at least one")
        for i, hop in enumerate(self.question_decomposition):
            if hop.paragraph_support_idx not in (None, *indices):
                raise InputError(
                    f"{where}: question_decomposition[{i}]: paragraph_support_idx is "
                    f"{short(hop.paragraph_support_idx)}, expected the idx of a paragraph"
                )


def synthetic_musique(
    count: int,
    *,
    hops: Mapping[int, float],
    paragraphs: int,
    same_relation: float,
    seed: int,
    heldout: int = 0,
) -> Iterator[MuSiQueRow]:
    """Yield `count` rows; the same arguments give the same rows.

    hops: share of questions with that many hops. paragraphs: number in each row. same_relation:
    share of distractor paragraphs that carry a relation which the question asks for. heldout: that
    many rows, the last, share no question and no hop with the others, however many these are.
    Raises InputError for numbers of hops or paragraphs that no row can have.
    """
    check_shares("hops", hops, _MOST_HOPS)
    least, most = max(hops) + 2, len(ENTITIES) - 1
    if not least <= paragraphs <= most:
        raise InputError(
            f"paragraphs is {paragraphs}, expected {least} to {most} with {max(hops)} hops"
        )
    for number in range(count):
        rng = random.Random(f"musique {seed} {number}")
        chain, relations = _chain(rng, draw(rng, hops), number >= count - heldout)
        yield _row(rng, number, chain, relations, paragraphs, same_relation)


def _reserved(*key: str) -> bool:
    """Return whether a hop or a question is kept for held-out rows, as a tenth of all are.

    The names are few, so rows in their thousands share them: chance alone would leave nothing to
    hold out.
    """
    return zlib.crc32(" ".join(key).encode()) % 10 == 0


@functools.cache
def _answers(entity: str, relation: str, reserved: bool) -> tuple[str, ...]:
    return tuple(e for e in ENTITIES if e != entity and _reserved(entity, relation, e) == reserved)


def _chain(rng: random.Random, hops: int, reserved: bool) -> tuple[list[str], list[str]]:
    """Return entities [hops + 1], each once, and the relations [hops] that lead from one to the next."""
    while True:
        relations = rng.sample(RELATIONS, hops)
        chain = [rng.choice(ENTITIES)]
        if _reserved(chain[0], *relations) != reserved:
            continue
        for relation in relations:
            chain.append(rng.choice(_answers(chain[-1], relation, reserved)))
        if len(set(chain)) == len(chain):
            return chain, relations


def _row(
    rng: random.Random,
    number: int,
    chain: list[str],
    relations: list[str],
    paragraphs: int,
    same_relation: float,
) -> MuSiQueRow:
    others = [entity for entity in ENTITIES if entity not in chain]
    distractors = rng.sample(others, paragraphs - len(relations))
    unasked = [relation for relation in RELATIONS if relation not in relations]

    facts: dict[str, list[tuple[str, str]]] = {}
    for i, relation in enumerate(relations):
        unread = [(other, rng.choice(distractors)) for other in rng.sample(unasked, _FACTS - 1)]
        facts[chain[i]] = [(relation, chain[i + 1]), *unread]
        rng.shuffle(facts[chain[i]])
    for title in distractors:
        carried = rng.sample(unasked, _FACTS)
        if rng.random() < same_relation:
            carried[rng.randrange(_FACTS)] = rng.choice(relations)
        elsewhere = [entity for entity in distractors if entity != title]
        facts[title] = [(relation, rng.choice(elsewhere)) for relation in carried]

    order = list(facts)
    rng.shuffle(order)
    supporting = chain[:-1]
    return MuSiQueRow(
        id=f"{len(relations)}hop__synthetic_{number}",
        paragraphs=tuple(
            Paragraph(i, title, _sentence(facts[title]), title in supporting)
            for i, title in enumerate(order)
        ),
        question="Who is the " + " of the ".join(reversed(relations)) + f" of {chain[0]}?",
        question_decomposition=tuple(
            Hop(
                id=f"{chain[i]}-{relation}-{chain[i + 1]}",
                question=f"{chain[i] if i == 0 else f'#{i}'} >> {relation}",
                answer=chain[i + 1],
                paragraph_support_idx=order.index(chain[i]),
            )
            for i, relation in enumerate(relations)
        ),
        answer=chain[-1],
        answer_aliases=(),
        answerable=True,
    )


def _sentence(facts: list[tuple[str, str]]) -> str:
    return "Ties: " + ", ".join(f"{relation} {value}" for relation, value in facts) + "."

"""From a segment's instances to its finding: does any deviate, and which variants give what was recorded?"""

import itertools
import math
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from rlvr_debug.blocks import Keyed
from rlvr_debug.errors import InputError, reason
from rlvr_debug.replay.declared import ALGORITHMS
from rlvr_debug.replay.finding import AGREES, DEVIATES, NONE, Finding, Name, NotSeen, Place
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.variants import Variant, causes_of, place_of, variants_of

_MOST = 4  # instances whose size is said
_PACKAGE = Path(__file__).resolve().parents[1]
EPSILON = torch.finfo(torch.float32).eps
# these four are all that a tolerance knows beside what perturbation makes of the segment itself
SHAKES = (1.0, -1.0)  # units in the last place that inputs are shaken by
_SUMMED = 30.0  # times the noise: in float32 another order of summation makes as much
_OWN = 4.0  # times the noise of the run's own operations
LAST_PLACES = 16 * EPSILON  # relative, and always allowed
OWN = "own"  # in the place of a precision: the noise is that of the run's own operations


@dataclass(frozen=True)
class Gap:
    """How far what was recorded is from a reference. share: of the tolerance. fit: sums of products of both, and of squares of the reference."""

    share: float
    deviation: float = 0.0
    places: tuple[Place, ...] = ()
    fit: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Instance:
    """One thing that the segment computed. compare: given a variant's knobs, the gap to it, None where that is not applicable.

    said: what deviates, or what finds that, called where something does.
    """

    where: str
    compare: Callable[..., Gap | None]
    said: str | Callable[[], str] = ""


# what a segment is of: without any, it was not seen
TOGETHER = "several processes"
PARTS: Mapping[str, Callable[[Record], bool]] = {
    TOGETHER: lambda record: bool(record.processes),
    "rows": lambda record: any(each.rows for each in record.generations),
    "calls of the sampler": lambda record: any(each.calls for each in record.generations),
    "rollouts": lambda record: bool(record.generations),
    "updates": lambda record: bool(record.updates),
    "micro-batches": lambda record: any(each.micro_batches for each in record.updates),
}


@dataclass(frozen=True)
class Segment:
    """A segment: its name, and what of it is in a record. knobs: types of what a variant may say. of: parts of a record.

    pairs: two variants at once are tried. trains: it is of what is trained on, and not of how that was made.
    """

    name: str
    instances: Callable[[Record, Network], Iterator[Instance]]
    knobs: Keyed
    of: str = ""
    pairs: bool = False
    trains: bool = False


def judge(segment: str, instances: Iterable[Instance], *, pairs: bool = False) -> Finding:
    """Return the segment's finding; of several instances that deviate, the names are those that fit all."""
    variants = variants_of(segment)
    share = deviation = total = product = square = 0.0
    seen = agreed = False
    named: list[dict[Name, float]] = []
    known: list[set[str]] = []
    sizes: dict[str, float] = {}
    places: list[Place] = []
    note = where = ""
    try:
        for instance in instances:
            gap = instance.compare()
            assert gap is not None
            seen = True
            # NaN is no agreement
            share = max(share, math.inf if math.isnan(gap.share) else gap.share)
            off = math.inf if math.isnan(gap.deviation) else gap.deviation
            deviation = max(deviation, off)
            product, square = product + gap.fit[0], square + gap.fit[1]
            if gap.fit[1]:
                sizes.setdefault(instance.where, gap.fit[0] / gap.fit[1])
            if gap.share <= 1:
                agreed = agreed or bool(gap.fit[1])
                continue
            total += off
            if not where:
                said = instance.said
                where, note = instance.where, said if isinstance(said, str) else said()
            places += gap.places
            named.append(_fitting(instance, variants, pairs))
            known.append(_algorithms(segment, instance))
    except NotSeen:
        if share <= 1:  # what deviates before it counts nevertheless
            raise
    names = tuple(name for name in (named or [{}])[0] if all(name in hits for hits in named))
    names = names or _by_turns(named, variants)
    # a name that fits what deviates says nothing of what agrees
    changing = _changing(sizes) if named and (agreed or not names) else ""
    note = "; ".join(
        filter(None, [where and f"first in {where}".replace("in after", "after"), changing, note])
    )
    algorithms = tuple(
        name for name in ALGORITHMS.get(segment, ()) if known and all(name in k for k in known)
    )
    status = DEVIATES if share > 1 else AGREES if seen else NONE
    own = tuple(dict.fromkeys(name.cause for name in names)) or causes_of(segment)
    causes = own if status == DEVIATES else ()
    ratio = product / square if square else None
    return Finding(
        *(segment, status, share, deviation, total, ratio, names, note, causes, tuple(places)),
        where=where,
        algorithms=algorithms,
    )


def _by_turns(named: Sequence[dict[Name, float]], variants: Sequence[Variant]) -> tuple[Name, ...]:
    """Return as one the names that one number gives, another in each instance: a sampler's weights get older and older."""
    if not named or not all(named):
        return ()
    turns = dict.fromkeys(min(hits, key=lambda name: hits[name]) for hits in named)
    knobs = [variant.knobs for variant in variants if Name(variant.name, variant.cause) in turns]
    numbers = all(isinstance(value, int) for each in knobs for value in each.values())
    if len(knobs) < len(turns) or len({tuple(each) for each in knobs}) > 1 or not numbers:
        return ()
    return (Name("by turns: " + ", ".join(each.name for each in turns), next(iter(turns)).cause),)


def _algorithms(segment: str, instance: Instance) -> set[str]:
    found = set()
    for name, knobs in ALGORITHMS.get(segment, {}).items():
        try:
            gap = instance.compare(**knobs)
        except NotSeen:
            continue
        if gap is not None and gap.share <= 1:
            found.add(name)
    return found


def _changing(sizes: Mapping[str, float]) -> str:
    """Return how many times what it should be each instance is, by least squares; "" where all are the same."""
    kept = dict(list(sizes.items())[:_MOST])
    if not kept or max(kept.values()) - min(kept.values()) <= 0.01 * max(map(abs, kept.values())):
        return ""
    said = ", ".join(f"{size:.3g} in {where}" for where, size in kept.items())
    return f"times what it should be: {said}"


def _fitting(instance: Instance, variants: Sequence[Variant], pairs: bool) -> dict[Name, float]:
    """Return what fits: by name, its share of the tolerance; where arithmetic is coarse, only the best of them."""
    hits: dict[Name, float] = {}
    # a number that is fitted is a weaker name than one that needs none
    for fitted in (False, True):
        for variant in variants if not hits else ():
            gap = _compared(instance, variant) if variant.fitted == fitted else None
            if gap is not None and gap.share <= 1:
                hits[Name(variant.name, variant.cause)] = gap.share
    if not hits and pairs:
        for one, other in itertools.combinations(variants, 2):
            if one.knobs.keys().isdisjoint(other.knobs):
                both = replace(one, knobs={**one.knobs, **other.knobs})
                gap = _compared(instance, both)
                if gap is not None and gap.share <= 1:
                    hits[Name(f"{one.name} and {other.name}", one.cause)] = gap.share
    best = min(hits.values(), default=0.0)
    return {name: share for name, share in hits.items() if share <= 3 * best + 1 / 30}


def _compared(instance: Instance, variant: Variant) -> Gap | None:
    """Return the gap to a variant, None where it reads what the record does not have."""
    try:
        return instance.compare(**variant.knobs)
    except NotSeen:
        return None
    except Exception as error:
        raise InputError(f"{place_of(variant)}: '{variant.name}' failed: {raised(error)}") from None


def raised(error: Exception) -> str:
    """Return a line that says what was raised, and by which line of the package."""
    if isinstance(error, InputError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if Path(each.filename).is_relative_to(_PACKAGE)]
    last = (own or frames)[-1]
    return f"{last.filename}:{last.lineno}: {reason(error)}"


# --- comparing


def rounding(noise: Tensor | float, size: Tensor | float, precision: str) -> Tensor:
    """Return a tolerance from the `noise` of perturbation in a precision, and units in the last place of `size`."""
    times = _SUMMED if precision == "float32" else _OWN
    return times * torch.as_tensor(noise) + LAST_PLACES * torch.as_tensor(size)


def shaken_by(unit: float, noise: Tensor | float, size: Tensor | float) -> Tensor:
    """Return a tolerance from the noise of inputs that were shaken by this unit in the last place, relative."""
    return rounding(noise, size, "float32" if unit == EPSILON else OWN)


def noise_of(found: Callable[[float], Tensor], unit: float) -> Tensor:
    """Return how far that is off which is found of inputs times 1 and a unit in the last place, from that of the inputs."""
    right = found(1.0)
    return torch.stack([(found(1 + shake * unit) - right).abs() for shake in SHAKES]).amax(0)


def unit_of(tensors: Iterable[Tensor | None]) -> float:
    """Return the unit in the last place, relative, of the coarsest of these; of float32 where none is coarser."""
    known = (each for each in tensors if each is not None and each.is_floating_point())
    return max((torch.finfo(each.dtype).eps for each in known), default=EPSILON)


def elementwise(got: Tensor, expected: Tensor, tolerance: Tensor) -> Gap:
    """Compare number by number; what is equal agrees, infinities too, and NaN with NaN alone."""
    if got.shape != expected.shape:
        return Gap(math.inf, math.inf)
    same = (got == expected) | (got.isnan() & expected.isnan())
    known = got.isfinite() & expected.isfinite()
    off = torch.where(same, 0.0, (got - expected).abs().double())
    share = torch.where(same, 0.0, off / tolerance).nan_to_num(nan=math.inf, posinf=math.inf)
    worst, furthest = (float(x.max()) if x.numel() else 0.0 for x in (share, off))
    return Gap(worst, furthest, fit=fitted(got[known], expected[known]))


def fitted(got: Tensor, expected: Tensor) -> tuple[float, float]:
    """Return what the least squares of one by the other are made of, [n]: see Gap."""
    wanted = expected.double()
    return float((got * wanted).sum()), float(wanted.square().sum())


def in_bfloat16(exact: Tensor, off: Tensor) -> tuple[Tensor, Tensor]:
    """Return numbers as bfloat16 holds them, and as it does where they are off by so much: halfway, it is the other one."""
    right, more, less = (x.bfloat16().to(exact.dtype) for x in (exact, exact + off, exact - off))
    return right, torch.where(more == right, less, more)


def certain(where: str, count: int, said: str) -> Instance:
    """Return what no variant gives otherwise: `count` are wrong."""
    return Instance(where, lambda **_: different(count), said)


def one_of(wrong: Collection[str], /, **named: str) -> Gap:
    """Compare what is wrong by its names; a variant is one of them."""
    return different(not set(named.values()).issubset(wrong) if named else len(wrong))


def different(count: int) -> Gap:
    """Compare what is either right or wrong: `count` are wrong."""
    return Gap(math.inf if count else 0.0, count)

"""What a check is: a pure function from a log to what it shows for one hypothesis, with the bound that it uses."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlvr_debug.causes import (
    CHECKS,
    LogCheck,
    check_names,
    file_of,
    hypothesis_names,
    module_of,
    read_hypothesis,
)
from rlvr_debug.errors import InputError
from rlvr_debug.logs.log import Array, Log
from rlvr_debug.logs.names import NAMES, READABLE, argument_name, argument_value

# how much what is logged would explain of a run that does not learn
STOPS = 4  # by itself nothing can be learned
LARGE = 3  # the mechanism is there, and large
MILD = 2  # it is there

_LATER = 0.25  # more in the last third than at first, as a share
_ERRORS = 3.0  # standard errors between thirds that are more than chance

# the first and the last one of some rows
Steps: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Passage:
    """A rollout that shows a finding. row: its label in Log.completions.

    turn: the turn that does, 0 for the prompt and -1 for the last one; text: the words that do, wherever they stand.
    Without either it is all of it.
    """

    row: int
    turn: int | None = None
    text: str = ""


@dataclass(frozen=True)
class Reading:
    """What a check reads from a log.

    strength: one of the three above, 0 if nothing was found. values: what the check's texts name. amount: in [0, 1],
    orders equal strengths. says: which text, where the check has several. rollouts: those that show it, the clearest
    first. steps: those that it speaks of, where these are others than the check's `at`; of: quantities, where these are
    others than it needs. The check adds: sentence, and measured, the numbers by their names.
    """

    strength: int
    values: Mapping[str, Any]
    amount: float = 0.5
    says: str = ""
    rollouts: tuple[Passage, ...] = ()
    steps: tuple[Steps, ...] = ()
    of: tuple[str, ...] = ()
    sentence: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Check(LogCheck):
    """A check of a log, for one hypothesis. run: the function of this name in the cause's log_checks.py."""

    slug: str
    run: Callable[[Log], Reading | None]

    @property
    def of_settings(self) -> bool:
        """Whether it reads the run's settings alone."""
        return all(name.startswith("argument.") for names in self.needs for name in names)

    def on(self, log: Log) -> Reading | None:
        """Return what the log shows, in words, None where too little is logged."""
        for name, values in self.unless.items():
            if (value := argument_value(log.settings, name)) is not None and value in values:
                said = f"`{name}` is {value}, so this is intended."
                return Reading(0, {}, 0.0, sentence=with_names(said, log))
        reading = self.run(log) if self._enough(log) else None
        if reading is None:
            return None
        text = self.found if reading.strength else self.fine
        try:
            text = text if isinstance(text, str) else text[reading.says]
            sentence = with_names(text.format_map(reading.values), log)
        except KeyError as name:
            place = f"causes/{self.slug.replace('-', '_')}/cause.yaml: key 'log_checks.{self.name}'"
            raise InputError(
                f"{place}: unknown name {name}, expected one of {', '.join(reading.values)}"
            ) from None
        return replace(reading, sentence=sentence, measured=self._measured(reading.values))

    def _enough(self, log: Log) -> bool:
        """Return whether finite values are there: as many as `fewest` says, and one of each quantity of an alternative."""
        fewest = {**dict.fromkeys(NAMES, 1), **self.fewest}
        return all(log.series(name).size >= count for name, count in self.fewest.items()) and any(
            log.has(*names)
            and all(log.series(name).size >= fewest[name] for name in names if name in fewest)
            for names in self.needs
        )

    def _measured(self, values: Mapping[str, Any]) -> dict[str, float]:
        found: dict[str, float] = {}
        for key, label in self.measured.items():
            value = values.get(key, {})
            each = value if isinstance(value, Mapping) else {key: value}
            found |= {label.format(name=name): number for name, number in each.items()}
        return found


def with_names(text: str, log: Log) -> str:
    """Return a text whose settings, in backquotes, have the names of the log's trainer."""
    return re.sub(r"`(\w+)`", lambda name: f"`{argument_name(name[1], log.framework)}`", text)


@cache
def log_checks() -> tuple[Check, ...]:
    """Return every cause's checks of a log, in their order.

    Raise InputError for one without its function, or that names what does not exist.
    """
    found = [
        _check_of(slug, of)
        for slug in hypothesis_names()
        for of in read_hypothesis(slug).log_checks
    ]
    for check in found:
        path, place = file_of(check.slug), f"log_checks.{check.name}"
        check_names(path, f"{place}.explains", check.explains, [other.name for other in found])
        for names in check.needs:
            check_names(path, f"{place}.needs", names, READABLE)
        check_names(path, f"{place}.fewest", check.fewest, NAMES)
    return tuple(sorted(found, key=lambda check: check.order))


def _check_of(slug: str, described: LogCheck) -> Check:
    """Return the check with its function. Raise InputError where there is none."""
    path, name = file_of(slug), described.name.replace("-", "_")
    functions = module_of(slug, CHECKS) if path.with_name(f"{CHECKS}.py").is_file() else None
    if (run := getattr(functions, name, None)) is None:
        raise InputError(
            f"{path}: key 'log_checks.{described.name}' has no function, expected {name} in log_checks.py"
        )
    return Check(**vars(described), slug=slug, run=run)


@dataclass(frozen=True)
class Trend:
    """Of a series: means of its first and last third, and their difference in standard errors."""

    first: float
    last: float
    z: float

    @property
    def rises(self) -> bool:
        return self.z >= _ERRORS

    @property
    def falls(self) -> bool:
        return self.z <= -_ERRORS

    @property
    def change(self) -> float:
        return self.last - self.first


def graded(value: float, bounds: Mapping[int, float]) -> int:
    """Return the largest strength whose bound the value reaches, else 0."""
    return max((strength for strength, bound in bounds.items() if value >= bound), default=0)


def first_rows(size: int) -> int:
    """Return how many of so many rows are the first ones: a twentieth, at least two of ten or more."""
    return max(2 if size >= 10 else 1, size // 20)


def from_the_start(shares: NDArray[Any]) -> float:
    """Return the mean of the first rows, or of all if that is less.

    What breaks later is the wreck of something else, or of what was solved; what mends itself no longer matters.
    """
    return float(min(shares[: first_rows(shares.size)].mean(), shares.mean()))


def steps_from_the_start(log: Log, quantity: str) -> tuple[Steps, ...]:
    """Return the steps of the rows whose mean from_the_start is, all where both means are one."""
    shares = log.series(quantity)
    count = first_rows(shares.size)
    is_start = shares[:count].mean() < shares.mean() * (1 - 1e-9)
    return spoken_of(log, quantity, slice(count) if is_start else slice(None))


def later(shares: Array) -> str:
    """Return the last third's share in words, where it is far above that of the first rows, else ""."""
    end, first = late(shares), shares[: first_rows(shares.size)]
    is_later = shares.size and first.mean() <= min(shares.mean(), end - _LATER)
    return f" (first rows; last third: {end:.0%})" if is_later else ""


def spoken_of(log: Log, quantity: str, *rows: slice) -> tuple[Steps, ...]:
    """Return the steps of rows in which a quantity is logged."""
    each = (log.steps_of(quantity)[part] for part in rows)
    return tuple((float(steps[0]), float(steps[-1])) for steps in each if steps.size)


def late(values: Array) -> float:
    """Return the median of the last third, at least of the last value; 0 of none."""
    return float(np.median(values[-max(1, values.size // 3) :])) if values.size else 0.0


def correlation(one: Array, other: Array) -> float:
    """Return Pearson's correlation, 0 where one of the two does not vary."""
    if not (one.size and np.ptp(one) and np.ptp(other)):
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


def trend(values: Array) -> Trend | None:
    """None for fewer than 9 values: a third would have none to speak of."""
    if values.size < 9:
        return None
    third = values.size // 3
    first, last = values[:third], values[-third:]
    error = float(np.sqrt((first.var(ddof=1) + last.var(ddof=1)) / third))
    change = float(last.mean() - first.mean())
    scale = max(abs(float(first.mean())), abs(float(last.mean())), 1e-300)
    if error <= 1e-9 * scale:
        z = 0.0 if abs(change) <= 1e-9 * scale else float(np.sign(change)) * 1e9
    else:
        z = change / error
    return Trend(float(first.mean()), float(last.mean()), z)

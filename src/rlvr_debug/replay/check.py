"""A record -> what each segment's recomputation says of it."""

import time
from dataclasses import dataclass, replace

from rlvr_debug.replay.consequences import CONSEQUENCES
from rlvr_debug.replay.declared import declared_text
from rlvr_debug.replay.finding import FAILED, NOT_SEEN, Finding, NotSeen, in_time_order
from rlvr_debug.replay.judge import PARTS, TOGETHER, Segment, judge, raised
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.rollouts import in_time
from rlvr_debug.replay.segments import PASSES, SEGMENTS
from rlvr_debug.replay.segments.scale import without_scale
from rlvr_debug.replay.variants import check_knobs, check_names


@dataclass(frozen=True)
class Checked:
    """What a check found. deviating: the earliest first."""

    findings: tuple[Finding, ...]
    deviating: tuple[Finding, ...]

    @property
    def first(self) -> Finding | None:
        """Return the earliest deviation, which is where a fault is; later ones may follow from it.

        If one method makes all passes, what it has the policy read shows in the log-probabilities of the earlier ones too.
        """
        first = self.deviating[0] if self.deviating else None
        if first is not None and first.segment in PASSES and first.own and not first.names:
            read = (e for e in self.deviating if e.segment == "model inputs" and e.own == first.own)
            return next(read, first)
        return first


def check(record: Record) -> Checked:
    """Compute every segment of the recorded steps again, and say which deviate."""
    check_names([segment.name for segment in SEGMENTS], CONSEQUENCES)
    record = without_scale(record)
    network = Network(record)
    made = in_time(record)  # what became of each generation, whenever it is trained
    findings = tuple(
        _timed(segment, record if segment.trains else made, network)
        for segment in SEGMENTS
        if record.processes or segment.of != TOGETHER
    )
    trained = [max((m.generation for m in u.micro_batches), default=0) for u in record.updates]
    return Checked(findings, in_time_order(findings, trained))


def _timed(segment: Segment, record: Record, network: Network) -> Finding:
    started = time.perf_counter()
    try:
        if segment.name in record.unseen:
            raise NotSeen(record.unseen[segment.name])
        if segment.of and not PARTS[segment.of](record):
            raise NotSeen(f"no {segment.of} were recorded")
        check_knobs(segment.name, segment.knobs)
        found = judge(segment.name, segment.instances(record, network), pairs=segment.pairs)
    except NotSeen as reason:
        found = Finding(segment.name, NOT_SEEN, note=str(reason))
    except Exception as error:  # the other segments answer nevertheless
        found = Finding(segment.name, FAILED, note=raised(error))
    what = record.own.declared.get(segment.name)
    return replace(
        found,
        own=record.own.overrides.get(segment.name, ""),
        declared="" if what is None else declared_text(what),
        seconds=time.perf_counter() - started,
    )

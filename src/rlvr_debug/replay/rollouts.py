"""A generation's rollouts, put together from the sampler's calls: what it read and what it wrote."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from rlvr_debug.replay.finding import NotSeen, need, seen
from rlvr_debug.replay.record import Batch, Call, Forward, Generation, MicroBatch, Record
from rlvr_debug.replay.settings import Settings


@dataclass(frozen=True)
class Turn:
    """One reply: all that the sampler read before it, and what it wrote."""

    prompt: list[int]
    output: list[int]


@dataclass(frozen=True)
class Rollout:
    """One row's sequence as it was sampled. wrote: which of `ids` the sampler wrote; what it rendered again nobody wrote."""

    prompt: list[int]
    ids: list[int]
    wrote: list[bool]
    turns: tuple[Turn, ...]

    @property
    def completion(self) -> list[int]:
        """Return all after the first prompt: replies, and what tools said between them."""
        return self.ids[len(self.prompt) :]

    @property
    def completion_wrote(self) -> list[bool]:
        return self.wrote[len(self.prompt) :]


def rollouts(generation: Generation, settings: Settings) -> list[Rollout]:
    """Return the generation's rollouts in the order of its rows, cut at their limit. Raise NotSeen where that cannot be told.

    Where a trained completion is longer than the limit, as a rollout function's may be, none is cut.
    """
    found = _turns(generation.calls)[0]
    batch = generation.batch
    same = batch is None or len(batch.prompt_ids) == len(found)
    need(same, "the number of sampled rollouts differs from the number trained on")
    limit = settings.cut_at
    if batch is not None and limit is not None and (batch.completion_mask.sum(1) > limit).any():
        limit = None
    return [_rollout(turns, limit) for turns in found]


def _turns(calls: Sequence[Call]) -> tuple[list[list[Turn]], list[list[int]]]:
    need(calls, "the sampler's calls were not recorded")
    first, *later = calls
    rows = [first.rows or [*range(len(first.prompts))]]
    turns = zip(rows[0], first.prompts, first.outputs, strict=True)
    found = [[Turn(prompt, output)] for _, prompt, output in sorted(turns, key=itemgetter(0))]
    for call in later:
        rows.append(call.rows or _continued(call, found))
        for row, prompt, output in zip(rows[-1], call.prompts, call.outputs, strict=True):
            found[row].append(Turn(prompt, output))
    return found, rows


def rows_of(calls: Sequence[Call]) -> list[list[int]]:
    """Return which rollouts each call's prompts are of. Raise NotSeen where no call was seen or a call continues nothing."""
    return _turns(calls)[1]


def _continued(call: Call, found: list[list[Turn]]) -> list[int]:
    """Return which row each prompt of a call continues: of those that fit, the longest."""
    free = {row: turns[-1].prompt + turns[-1].output for row, turns in enumerate(found)}
    rows = []
    for prompt in call.prompts:
        fitting = [row for row, read in free.items() if prompt[: len(read)] == read]
        need(fitting, "a call of the sampler does not continue an earlier one")
        rows.append(max(fitting, key=lambda each: (len(free[each]), -each)))
        del free[rows[-1]]
    return rows


def _rollout(turns: list[Turn], limit: int | None) -> Rollout:
    ids: list[int] = []
    wrote: list[bool] = []
    for turn in turns:
        pairs = enumerate(zip(ids, turn.prompt, strict=False))
        same = next((n for n, (a, b) in pairs if a != b), min(len(ids), len(turn.prompt)))
        wrote = wrote[:same] + [False] * (len(turn.prompt) - same) + [True] * len(turn.output)
        ids = turn.prompt + turn.output
    most = len(ids) if limit is None else len(turns[0].prompt) + limit
    return Rollout(turns[0].prompt, ids[:most], wrote[:most], tuple(turns))


def carried(rollout: Rollout, completion: list[int]) -> Rollout:
    """Return the rollout in the tokens of another completion; as it is where not all of its replies stand in that one."""
    wrote: list[bool] = []
    for turn in rollout.turns:
        size, place = len(turn.output), len(wrote)
        starts = range(place, len(completion) - size + 1)
        start = next((n for n in starts if completion[n : n + size] == turn.output), None)
        if start is None:
            return rollout
        wrote += [False] * (start - place) + [True] * size
    prompt = rollout.prompt
    ids = prompt + completion[: len(wrote)]
    return Rollout(prompt, ids, [False] * len(prompt) + wrote, rollout.turns)


def trained(batch: Batch) -> list[tuple[list[int], list[int], list[bool]]]:
    """Return each row's prompt without padding, its completion with padding, and which of that the loss counts."""
    return [
        (prompt[real.bool()].tolist(), completion.tolist(), counted.bool().tolist())
        for prompt, real, completion, counted in zip(
            *(batch.prompt_ids, batch.prompt_mask, batch.completion_ids, batch.loss_mask),
            strict=True,
        )
    ]


def trained_ids(batch: Batch, sampled: Sequence[Rollout], pad: int) -> list[list[int]]:
    """Return each row's trained sequence, without the padding, or turn of a tool that nobody read, behind what was sampled."""
    found = []
    for rollout, (prompt, completion, counted) in zip(sampled, trained(batch), strict=True):
        own = rollout.completion
        for least in (len(own), 0):
            end = len(completion)
            while end > least and (completion[end - 1] == pad or not counted[end - 1]):
                end -= 1
            if completion[:end] == own:
                break
        found.append(prompt + completion[:end])
    return found


def what_is_read(micro: MicroBatch) -> Forward:
    """Return what the policy read. Raise NotSeen where that is not a row for each of the micro-batch's."""
    forward = seen(micro.forward)
    count, own = len(forward.input_ids), len(micro.given.completion_ids)
    need(count == own, f"the policy read {count} rows, of {own} that are trained on")
    return forward


def batch_of(generation: Generation) -> Batch:
    """Return what is trained on. Raise NotSeen where its tokens were not recorded."""
    batch = seen(generation.batch, "the batch that is trained on was not seen")
    need(batch.completion_ids.numel(), "the batch that is trained on was not seen")
    return batch


def alike_groups(generation: Generation, settings: Settings) -> list[bool]:
    """Return of each group whether all its rollouts are the same, token by token; [] where they were not seen."""
    try:
        found = [tuple(each.ids) for each in rollouts(generation, settings)]
    except NotSeen:
        return []
    size = settings.group_size
    return [len(set(found[n : n + size])) == 1 for n in range(0, len(found), size)]


# --- batches that were sampled for an earlier generation than the one that is trained on them: training runs behind


def origins(record: Record) -> list[int]:
    """Return of which generation each generation's batch is: its own, unless all of its rows are an earlier one's and not its own."""
    found = []
    for number, generation in enumerate(record.generations):
        before = range(number - 1, -1, -1)
        fitting = (n for n in (number, *before) if _sampled_in(record, generation, n))
        found.append(next(fitting, number))
    return found


def _sampled_in(record: Record, generation: Generation, number: int) -> bool:
    try:
        batch = batch_of(generation)
        sampled = rollouts(replace(record.generations[number], batch=batch), record.settings)
    except NotSeen:
        return False
    return trained_ids(batch, sampled, record.settings.pad_id) == [each.ids for each in sampled]


def in_time(record: Record) -> Record:
    """Return the record with each batch at the generation that it was sampled in, up to the first that was never given out."""
    found = origins(record)
    if found == [*range(len(found))]:
        return record
    pairs = zip(found, record.generations, strict=True)
    batches = {origin: generation.batch for origin, generation in reversed([*pairs])}
    kept = []
    for number, generation in enumerate(record.generations):
        if number not in batches:
            break
        kept.append(replace(generation, batch=batches[number]))
    return replace(record, generations=kept)

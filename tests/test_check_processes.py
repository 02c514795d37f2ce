"""The check of several processes: what each recorded becomes one record, and what differs between them is found."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, reduce
from importlib.util import find_spec
from operator import getitem
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json
from rlvr_debug.recorders.keeping import Cut
from rlvr_debug.recorders.ranks import APART, merged, part_of
from rlvr_debug.recorders.trl.launched import (
    Ranks,
    as_one,
    launched,
    launcher_words,
    take_launcher_words,
)
from rlvr_debug.recorders.trl.reward_calls import RewardWatch
from rlvr_debug.recorders.trl.seams import Seams
from rlvr_debug.replay.answer import answer_of
from rlvr_debug.replay.check import check
from rlvr_debug.replay.record import Generation, MicroBatch, Record, RewardCall
from rlvr_debug.replay.store import check_folder, digest, read_part, write_record
from tests.small_record import change, line, small_record

TRL = find_spec("trl") is not None
EMBEDDINGS = "model.embed_tokens.weight"
SCRIPT = ROOT / "benchmarks" / "check" / "script.py"
needs_trl = pytest.mark.skipif(not TRL, reason="trl is not installed: no trainer to check")

# --- records of several processes, made of one


def part(whole: Record, rank: int, size: int = 2) -> Record:
    """Return what one of `size` processes would have recorded of the same steps: its own rows."""
    generations = [_rows(each, rank, size) for each in whole.generations]
    updates = [
        replace(u, micro_batches=[_micro(micro, rank, size) for micro in u.micro_batches])
        for u in whole.updates
    ]
    own = replace(whole, generations=generations, updates=updates)
    return part_of(own, [f"{rank}"] * len(generations), Cut(), main=not rank)


def _rows(generation: Generation, rank: int, size: int) -> Generation:
    count = len(generation.rows) // size
    here = slice(rank * count, (rank + 1) * count)
    [call], batch = generation.calls, generation.batch
    assert batch is not None
    cut = {name: t[here] for name, t in vars(batch).items() if t is not None}
    calls = []
    for each in generation.reward_calls:
        columns = {name: values[here] for name, values in each.columns.items()}
        lists = ("returned", "again", "backwards", "alone")
        calls.append(replace(each, columns=columns, **{n: getattr(each, n)[here] for n in lists}))
    sampled = {name: getattr(call, name)[here] for name in ("prompts", "outputs", "logprobs")}
    return replace(
        generation,
        rows=generation.rows[here],
        calls=[replace(call, **sampled)],
        messages=(generation.messages or [])[here],
        reward_calls=calls,
        batch=replace(batch, **{**cut, "rows": None}),
    )


def _micro(micro: MicroBatch, rank: int, size: int) -> MicroBatch:
    """Return the rows of a micro-batch that are of this process, whose gradients are averaged with the others'."""
    rows = micro.given.rows
    assert rows is not None
    assert micro.forward is not None
    assert micro.logprobs is not None
    assert micro.grad_logprobs is not None
    count = 4 // size
    here = (rows // count == rank).nonzero()[:, 0]
    return replace(
        micro,
        given=replace(micro.given.of_rows(here), rows=rows[here] - rank * count),
        forward=micro.forward.of_rows(here),
        logprobs=micro.logprobs[here],
        grad_logprobs=micro.grad_logprobs[here] * size,
    )


@pytest.fixture(scope="module")
def whole() -> Record:
    return small_record()


def told(record: Record) -> dict[str, Any]:
    return answer_of(record, check(record))


def parts_of(whole: Record) -> list[Record]:
    return [part(whole, rank) for rank in (0, 1)]


def statuses(answer: Mapping[str, Any]) -> dict[str, str]:
    return {each["segment"]: each["status"] for each in answer["segments"]}


def test_parts_of_the_same_steps_are_checked_as_the_one_process_that_made_them(
    whole: Record, tmp_path: Path
) -> None:
    write_record(part(whole, 1), tmp_path / "part-1")
    one = merged([part(whole, 0), read_part(tmp_path / "part-1")])
    assert one.size == 2
    for mine, theirs in zip(one.generations, whole.generations, strict=True):
        assert mine.rows == theirs.rows
        assert mine.processes == [0, 0, 1, 1]
        assert [call.outputs for call in mine.calls] == [call.outputs for call in theirs.calls]
        assert mine.rewards is not None
        assert theirs.rewards is not None
        assert torch.equal(mine.rewards, theirs.rewards)
        assert [vars(each) for each in mine.reward_calls] == [vars(x) for x in theirs.reward_calls]
    write_record(one, tmp_path / "whole")
    after = check_folder(tmp_path / "whole")
    assert statuses(after) == statuses(told(whole)) | {"processes": "agrees"}
    assert after["first"] is None, after["answer"]


def test_a_record_of_the_first_version_is_read(whole: Record, tmp_path: Path) -> None:
    write_record(whole, tmp_path / "record")
    change(tmp_path / "record", lambda told: told.update(version=1))
    assert check_folder(tmp_path / "record")["first"] is None


def _other(record: Record, **changes: Any) -> Record:
    return replace(record, processes=[replace(record.processes[0], **changes)])


def _times(factor: float, record: Record) -> Record:
    """Return the record of a process whose loss is multiplied."""
    for micro in (micro for update in record.updates for micro in update.micro_batches):
        assert micro.grad_logprobs is not None
        micro.grad_logprobs = micro.grad_logprobs * factor
    return record


def _reduced(factor: float, record: Record) -> Record:
    """Return the record of the first process whose gradients were exchanged wrongly; the clip hides nothing."""
    for update in record.updates:
        update.gradients = {n: g * factor for n, g in (update.gradients or {}).items()}
    return record


def _rewards_of_the_first(record: Record) -> Record:
    for batch in (generation.batch for generation in record.generations):
        assert batch is not None
        batch.advantages.copy_(batch.advantages.flip(0))
    return record


def _together(other: float, record: Record) -> Record:
    """Return the record of a process whose first function says that much more where it is given the rows of all."""
    for calls in (generation.reward_calls for generation in record.generations):
        calls[0] = replace(calls[0], together=[value + other for value in calls[0].returned])
    return record


def _weights(record: Record) -> Record:
    held = [*record.processes[0].weights]
    held[2] = {**held[2], "lm_head.weight": "another"}
    return _other(record, weights=held)


def _weights_from_the_beginning(record: Record) -> Record:
    """Return the record of a process whose weights are its own, and whose gradients deviate by it."""
    held = [{**each, "lm_head.weight": "own"} for each in record.processes[0].weights]
    return _other(_reduced(2, record), weights=held)


def _clipped_later(record: Record) -> Record:
    return replace(record, settings=replace(record.settings, clip=0.3))


def _gradients_of_its_own(record: Record) -> Record:
    return _other(record, gradients=[{"lm_head.weight": "own"}] * 3)


def _sampled_cold(record: Record) -> Record:
    for calls in (generation.calls for generation in record.generations):
        calls[0] = replace(calls[0], used=replace(record.settings.sampling, temperature=0.5))
    return record


def _same(record: Record) -> Record:
    return record


Change = Callable[[Record], Record]
# what is wrong in process 0 and in process 1, the segment that it is found in, and what is said of it
MISTAKES: list[tuple[Change, Change, str, str]] = [
    (_same, _weights, "processes", "weights differ between process 0 and process 1: 1 of "),
    (_weights_from_the_beginning, _same, "processes", "First in the beginning; weights differ"),
    (_same, _clipped_later, "processes", "clip 0.3 and 0.2"),
    (_same, _gradients_of_its_own, "processes", "gradients differ"),
    (_same, partial(_other, states=[{}] * 3), "processes", "the optimizer's states differ"),
    (partial(_times, 0.5), partial(_times, 0.5), "loss", "by the number of processes twice"),
    (partial(_times, 2), partial(_times, 2), "loss", "multiplied by the number of processes"),
    (_same, partial(_times, 0), "loss", ""),
    (partial(_reduced, 2), _same, "gradient", "the number of processes: summed over them"),
    (
        partial(_together, 0.0),
        partial(_together, 1.0),
        "rewards",
        "on its process or on the rows that it has",
    ),
    (_same, _rewards_of_the_first, "advantages", ""),
    (_same, _sampled_cold, "sampling settings", ""),
]


@pytest.mark.parametrize(("first", "second", "segment", "said"), MISTAKES)
def test_a_mistake_between_processes_is_found_where_it_is(
    first: Change, second: Change, segment: str, said: str
) -> None:
    one, other = parts_of(small_record())  # a mistake writes to it
    answer = told(merged([first(one), second(other)]))
    assert answer["first"] == segment, answer["answer"]
    assert said in answer["answer"]


@pytest.mark.parametrize("stuck", [False, True])
def test_processes_may_each_step_a_part_of_the_weights_if_all_of_them_move(stuck: bool) -> None:
    record = small_record()
    for update in record.updates:
        update.optimizer = "__main__.Sharded"
        before, after = (record.weights[n] for n in (update.before, update.after))
        record.weights[update.after] = {**after, EMBEDDINGS: before[EMBEDDINGS]} if stuck else after
    one, other = parts_of(record)
    answer = told(merged([one, _other(other, states=[{}] * 3)]))
    assert (answer["first"] == "optimizer step") == stuck, answer["answer"]
    assert ("1 of 15 tensors have a gradient and do not move" in answer["answer"]) == stuck


def test_rows_that_processes_give_each_other_after_they_were_dealt_out_are_followed(
    whole: Record,
) -> None:
    """Each process numbers its own from a multiple on; those of whoever trains them say nothing."""
    parts = parts_of(whole)
    for rank, each in enumerate(parts):
        for micro in (micro for update in each.updates for micro in update.micro_batches):
            assert micro.given.rows is not None
            micro.given = replace(micro.given, rows=micro.given.rows + APART * (rank + 1))
    for one, other in zip(*(each.updates for each in parts), strict=True):
        one.micro_batches, other.micro_batches = other.micro_batches, one.micro_batches
    given = [m.given.rows for u in merged(parts).updates for m in u.micro_batches]
    held = [m.given.rows for u in merged(parts_of(whole)).updates for m in u.micro_batches]
    assert [rows.tolist() for rows in given if rows is not None] == [
        rows.tolist()
        for step in zip(held[1::2], held[::2], strict=True)
        for rows in step
        if rows is not None
    ]


def test_processes_that_have_the_same_rows_are_told(whole: Record) -> None:
    one = replace(part(whole, 0), settings=replace(whole.settings, data_rows=9))
    answer = told(merged([one, one]))
    assert answer["first"] == "processes"
    assert "has the rows of process 0" in answer["answer"]


def test_equal_random_states_count_where_both_sample_the_same_rows(whole: Record) -> None:
    for generation in whole.generations:
        assert generation.rows[0] != generation.rows[2]
    parts = [_other(each, random=["one", "one"]) for each in parts_of(whole)]
    assert told(merged(parts))["first"] is None
    wide = replace(whole, settings=replace(whole.settings, group_size=4))
    wide = replace(wide, generations=[replace(g, rows=[g.rows[0]] * 4) for g in wide.generations])
    parts = [_other(each, random=["one", "one"]) for each in parts_of(wide)]
    found = told(merged(parts))
    assert "draws tokens with the random numbers of process 0" in found["answer"]


def test_equal_rows_in_one_generation_are_chance_where_the_data_repeat_rows(whole: Record) -> None:
    one = merged(parts_of(whole))
    one = replace(one, settings=replace(one.settings, data_rows=9))
    before = one.generations[:-1]
    assert before
    again = [replace(each, rows=[*each.rows[:2], *each.rows[:2]]) for each in one.generations]
    for generations, status in (([*before, again[-1]], "agrees"), (again, "deviates")):
        found = told(replace(one, generations=generations))
        assert statuses(found)["processes"] == status


def test_a_state_of_shards_is_what_all_held_at_one_time_though_one_rank_s_do_not_change(
    whole: Record,
) -> None:
    shapes = {name: tensor.shape for name, tensor in whole.weights[0].items()}
    shards: list[list[Mapping[str, torch.Tensor]]] = [
        [{n: t.flatten().chunk(2)[rank] for n, t in each.items()} for each in whole.weights]
        for rank in (0, 1)
    ]
    parts = [replace(p, weights=w) for p, w in zip(parts_of(whole), shards, strict=True)]
    last = whole.updates[-1]
    assert (last.before, last.after) == (len(whole.weights) - 2, len(whole.weights) - 1)
    kept = replace(parts[0].updates[-1], after=last.before)
    parts[0] = replace(parts[0], weights=shards[0][:-1], updates=[*parts[0].updates[:-1], kept])
    one = merged(parts, Cut(shapes))
    assert [(u.before, u.after) for u in one.updates] == [
        (u.before, u.after) for u in whole.updates
    ]
    for name, shape in shapes.items():
        mixed = torch.cat([shards[0][-2][name], shards[1][-1][name]]).view(shape)
        assert torch.equal(one.weights[-1][name], mixed)
        assert torch.equal(one.weights[-2][name], whole.weights[-2][name])


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (
            ("generations", 0),
            {"processes": [0, 1]},
            "of length 2, expected 4, one for each rollout",
        ),
        (("generations", 0), {"processes": [0, 0, 1, 2]}, "2 somewhere, expected from 0 to 1"),
        (("updates", 0, "micro_batches", 1), {"process": 7}, "7 somewhere, expected from 0 to 1"),
    ],
)
def test_processes_that_do_not_fit_are_refused(
    whole: Record, tmp_path: Path, where: tuple[Any, ...], value: dict[str, Any], said: str
) -> None:
    write_record(merged(parts_of(whole)), tmp_path / "record")
    change(tmp_path / "record", lambda told: reduce(getitem, where, told).update(value))
    key = ".".join(map(str, (*where, *value)))
    assert f"key '{key}' is {said}" in line(tmp_path / "record")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_digest_is_of_bits_type_and_shape(dtype: torch.dtype) -> None:
    one = torch.tensor([0, 1, 2, 3]).to(dtype)
    assert digest(one) == digest(one.clone())
    others = [one.view(2, 2), one.flip(0), one.double()]
    assert len({digest(each) for each in (one, *others)}) == 4
    zero = torch.zeros(1)
    assert digest(zero) != digest(-zero)  # equal numbers, other bits


# --- how processes end together


def ranks(folder: Path, size: int = 2) -> list[Ranks]:
    (folder / "main").write_text(str(os.getpid()), encoding="utf-8")
    return [Ranks(rank, size, folder) for rank in range(size)]


def test_the_first_that_ended_is_named_and_not_those_that_it_took_along(tmp_path: Path) -> None:
    first, second = ranks(tmp_path)
    first.check(time.time(), 60)
    second.ended("train.py: ended: ValueError: bad")
    first.ended("train.py: ended: connection closed by peer")
    second.ended("said again")
    with pytest.raises(InputError, match=r"^rank 1: train.py: ended: ValueError: bad$"):
        first.check(time.time(), 60)


def test_a_rank_that_does_not_get_on_is_named_after_the_limit(tmp_path: Path) -> None:
    first, second = ranks(tmp_path)
    first.write("beat-0", {"count": 7, "what": "gradients"})
    second.write("beat-1", {"count": 3, "what": "rewards"})
    first.check(0, 60)
    for file in tmp_path.glob("beat-*"):
        os.utime(file, (1, 1))
    with pytest.raises(
        InputError, match=r"rank 1: waits or hangs after 3 .* rewards, where another"
    ):
        first.check(0, 60)
    second.write("beat-1", {"count": 7, "what": "gradients"})
    os.utime(tmp_path / "beat-1", (1, 1))
    with pytest.raises(InputError, match="all ranks wait after 7 recorded calls"):
        first.check(0, 60)
    wait = '  File "/lib/site-packages/torch/distributed/c10d.py", line 9 in all_gather\n'
    own = '  File "train.py", line 3 in reward\n'
    for others, said in (
        (wait + own, r"all ranks wait .* gradients: rank 0 at train.py:3, rank 1 at train.py:3;"),
        (own, r"rank 1: waits or hangs at train.py:3, after 7 .*, where the others wait;"),
    ):
        for number, frames in ((0, wait + own), (1, others)):
            head = "Thread 0x1 (most recent call first):\n"
            (tmp_path / f"stack-{number}").write_text(f"{head}{own}\n{head}{frames}")
        with pytest.raises(InputError, match=said):
            first.check(0, 60)
    for rank in (first, second):  # all is recorded: the check itself may take its time
        rank.part(rank.rank).mkdir()
    first.check(0, 60)


def test_all_end_with_the_status_of_the_first_which_alone_speaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = signal.getsignal(signal.SIGTERM)
    first, second = ranks(tmp_path)
    second.write("left-1", 0)
    with pytest.raises(SystemExit) as end, as_one(first):
        raise InputError("rank 1: bad")
    assert end.value.code == 2
    assert capsys.readouterr().err == "error: rank 1: bad\n"
    assert not tmp_path.exists()
    tmp_path.mkdir()
    ranks(tmp_path)
    first.write("said", 3)
    with pytest.raises(SystemExit) as end, as_one(second):
        raise InputError("not printed")
    assert end.value.code == 3
    assert capsys.readouterr().err == ""
    (tmp_path / "said").unlink()
    (tmp_path / "main").write_text(str(2**22 + 7), encoding="utf-8")  # no such process
    assert second.wait() is None
    signal.signal(signal.SIGTERM, kept)


def test_ranks_are_read_from_the_launchers_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert launched({}) is None
    assert launched({"WORLD_SIZE": "1", "RANK": "0"}) is None
    told = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "1234"}
    one, two = (launched({**told, "RANK": rank}) for rank in ("0", "1"))
    assert one is not None
    assert two is not None
    assert (one.rank, two.rank, one.size) == (0, 1, 2)
    assert one.folder == two.folder
    assert one.folder.stat().st_mode & 0o077 == 0
    with pytest.raises(InputError, match="several machines"):
        launched({**told, "RANK": "1", "LOCAL_WORLD_SIZE": "1"})


def test_the_script_gets_what_deepspeeds_launcher_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVR_DEBUG_LAUNCHER_WORDS", "")  # as it is again afterwards
    words = ["--local_rank=1", "check", "train.py"]
    take_launcher_words(words)
    assert words == ["check", "train.py"]
    assert launcher_words() == ["--local_rank=1"]


# --- TRL's trainer in two processes


def checked(forks: Any, folder: Path, *words: str) -> Mapping[str, Any]:
    status, said = forks.run([str(SCRIPT), *words], folder, 200, 2)
    assert (folder / "answer.json").is_file(), (status, said[-2000:])
    answer: Mapping[str, Any] = read_json(folder / "answer.json")
    return answer


LIGHT = ("gradients-not-reduced",)
HEAVY = (
    *("rows-not-sharded", "one-seed-on-every-rank", "slice-of-the-first-rank"),
    *("groups-cut-by-rank", "tokens-counted-by-each-rank", "loss-times-the-ranks"),
    *("gradients-summed", "own-rewards-first"),
)


def heavy(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.heavy) for name in names]


@needs_trl
@pytest.mark.parametrize("fault", [*LIGHT, *heavy(*HEAVY)])
def test_a_fault_of_two_processes_is_found_where_it_is(
    forks: Any, tmp_path: Path, fault: str
) -> None:
    from benchmarks.check.faults import FAULTS

    answer = checked(forks, tmp_path, "--fault", fault)
    assert answer["first"] in FAULTS[fault].segments, answer["answer"]


@needs_trl
@pytest.mark.parametrize(
    "setting",
    [
        "kl",
        *heavy("groups-across-processes", "lora+kl", "top-entropy", "tools", "loss-bnpo"),
    ],
)
def test_a_healthy_script_of_two_processes_agrees(forks: Any, tmp_path: Path, setting: str) -> None:
    answer = checked(forks, tmp_path, "--setting", setting)
    assert answer["first"] is None, answer["answer"]
    assert statuses(answer)["processes"] == "agrees"
    assert "not seen" not in statuses(answer).values()


# --- rewards of all processes' rows


def _shortest(completions: list[str]) -> list[float]:
    return [float(len(each) - min(map(len, completions))) for each in completions]


def _called(
    rank: int, folder: Path, found: dict[int, RewardCall], scored: Callable[..., Any] = _shortest
) -> None:
    watch = RewardWatch(Seams(), again=True, ranks=Ranks(rank, 2, folder))
    (function,) = watch.watched([scored], lambda: None)
    function(completions=[["a", "bbb"], ["cc", "dddd", "eeeee"]][rank])
    generation = replace(small_record().generations[0], reward_calls=watch.calls)
    watch.finish(replace(small_record(), generations=[generation]))
    (found[rank],) = generation.reward_calls


def test_a_reward_is_called_again_with_the_rows_of_all_processes(tmp_path: Path) -> None:
    found: dict[int, RewardCall] = {}
    threads = [Thread(target=_called, args=(rank, tmp_path, found)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[rank].returned for rank in (0, 1)] == [[0, 2], [0, 2, 3]]
    assert [found[rank].together for rank in (0, 1)] == [[0, 2], [1, 3, 4]]


def test_a_reward_function_that_is_another_in_another_process_is_told(tmp_path: Path) -> None:
    """A hash of text is salted by process: each agrees with itself."""
    found: dict[int, RewardCall] = {}
    functions = [lambda completions, n=n: [float(n + len(x)) for x in completions] for n in (0, 1)]
    given = [(rank, tmp_path, found, functions[rank]) for rank in (0, 1)]
    threads = [Thread(target=_called, args=each) for each in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[rank].again for rank in (0, 1)] == [[1, 3], [3, 5, 6]]
    assert [found[rank].together for rank in (0, 1)] == [[2, 4], [2, 4, 5]]


def test_a_process_that_ended_is_not_waited_for(tmp_path: Path) -> None:
    ranks = [Ranks(rank, 2, tmp_path) for rank in (0, 1)]
    assert ranks[0].told("rewards", 1, limit=0) == []
    ranks[1].ended("it raised")
    assert ranks[0].told("rewards", 1) == []
    found: dict[int, RewardCall] = {}
    _called(0, tmp_path, found)
    assert found[0].again == [0, 2]
    assert found[0].together is None

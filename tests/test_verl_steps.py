"""What several workers of verl keep of an optimizer's steps is put together: torch's FSDP in two processes. verl itself is not needed."""

from multiprocessing import set_forkserver_preload
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.multiprocessing.spawn import start_processes

from rlvr_debug.errors import InputError
from rlvr_debug.recorders.verl import steps
from rlvr_debug.recorders.verl.steps import StepWatch, fill, saved
from rlvr_debug.replay.architecture import no_model
from rlvr_debug.replay.check import check
from rlvr_debug.replay.record import Record, Update
from rlvr_debug.replay.settings import Sampling, Settings

FLAT, OWN = ({"use_orig_params": own, "device_id": torch.device("cpu")} for own in (False, True))
RATE, DATA = 0.1, torch.arange(6.0).view(2, 3)
ASKED = Settings(2, Sampling(), 4, learning_rate=RATE, weight_decay=0.01, schedule="constant")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


class Engine:
    """What is read of verl's engine. Its clip halves."""

    def __init__(self, module: Any) -> None:
        self.module, self.optimizer = module, torch.optim.AdamW(module.parameters(), lr=RATE)

    def train(self) -> None:
        self.optimizer.zero_grad()
        self.module(DATA).square().mean().backward()
        self.optimizer_step()

    def optimizer_step(self) -> None:
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)
        self.optimizer.step()


def sharded(version: str) -> Any:
    module = model()
    if version == "fsdp2":
        fully_shard(module[2])
        return fully_shard(module)
    asked: Any = FLAT if version == "fsdp" else OWN
    module[2] = FullyShardedDataParallel(module[2], **asked)
    return FullyShardedDataParallel(module, **asked)


def two_steps(engine: Engine, folder: Path) -> None:
    for _ in range(2):
        watch = StepWatch(engine)
        with watch.watching():
            engine.train()
        watch.write(folder)


def work(rank: int, folder: str) -> None:
    """Be one of two workers, and train by each version."""
    where = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
    for version in VERSIONS:
        two_steps(Engine(sharded(version)), Path(folder, version))
    distributed.destroy_process_group()


VERSIONS = ["fsdp", "fsdp with its own parameters", "fsdp2"]
SHAPES = {name: parameter.shape for name, parameter in model().named_parameters()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what two workers wrote, by version of FSDP."""
    found = tmp_path_factory.mktemp("workers")
    for version in VERSIONS:
        (found / version).mkdir()
    set_forkserver_preload([__name__, "torch._dynamo"])  # imported once for both
    start_processes(work, (str(found),), 2, start_method="forkserver")  # type: ignore[no-untyped-call]
    return found


def recorded(folder: Path, shapes: dict[str, torch.Size] = SHAPES, updates: int = 2) -> Record:
    made = [Update() for _ in range(updates)]
    record = Record("verl", ASKED, None, None, no_model, updates=made)
    fill(record, saved(folder, "step"), shapes)
    return record


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pieces_of_all_workers_are_what_one_process_has(folder: Path, version: str) -> None:
    record, engine = recorded(folder / version), Engine(model())
    named = dict(engine.module.named_parameters())
    assert record.trainable == (*named,)
    assert [(each.before, each.after) for each in record.updates] == [(0, 1), (1, 2)]
    for update in record.updates:
        held = {name: parameter.detach().clone() for name, parameter in named.items()}
        engine.train()
        for name, parameter in named.items():
            state = engine.optimizer.state[parameter]
            numbers = (update.before, update.after)
            got = [
                *(record.weights[number][name] for number in numbers),
                *((kept or {})[name] for kept in (update.gradients, update.clipped)),
                *(update.state_after[name][key] for key in state),
            ]
            now = [held[name], parameter.detach(), 2 * parameter.grad, parameter.grad]
            torch.testing.assert_close(got, [*now, *state.values()])
    found = {each.segment: each.status for each in check(record).findings}
    names = ("clip", "weights between steps", "optimizer step")
    assert [found[name] for name in names] == ["deviates", "agrees", "agrees"]


def test_steps_that_do_not_tell_the_weights_are_refused_with_the_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(shapes: dict[str, Any], updates: int = 2) -> str:
        with pytest.raises(InputError) as error:
            recorded(folder / "fsdp", shapes, updates)
        return str(error.value)

    others = [{**SHAPES, "0.weight": torch.Size(shape)} for shape in ((5, 4), (5, 1))]
    fewer = {name: SHAPES[name] for name in ("0.weight", "0.bias")}
    for shapes in (*others, fewer, {**SHAPES, "head": torch.Size([2])}):
        assert "of the configuration's model" in refused(shapes)
    assert refused(SHAPES, 3) == "not all workers wrote what their optimizer did"
    monkeypatch.setattr(steps, "LARGE", 10)
    assert "50 M" in refused(SHAPES)


def test_a_step_that_cannot_be_kept_is_made_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where torch has no group of processes."""
    engine, plain = Engine(model()), Engine(model())
    two_steps(engine, tmp_path)
    plain.train()
    plain.train()
    pairs = zip(engine.module.parameters(), plain.module.parameters(), strict=True)
    assert all(torch.equal(*each) for each in pairs)
    assert vars(engine).keys() == vars(plain).keys()
    assert not engine.optimizer._optimizer_step_pre_hooks
    assert capsys.readouterr().out.count("a worker's optimizer step could not be recorded: ") == 2
    assert [*tmp_path.iterdir()] == []


def test_an_optimizer_step_of_a_user_s_own_is_in_its_place_again() -> None:
    engine = Engine(model())
    engine.optimizer_step = own = engine.optimizer_step  # type: ignore[method-assign]
    with StepWatch(engine).watching():
        assert engine.optimizer_step is not own
    assert engine.optimizer_step is own
    del engine.optimizer_step
    with StepWatch(engine).watching():
        engine.train()
    assert "optimizer_step" not in vars(engine)

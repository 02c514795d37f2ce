"""The check of a script that torchrun starts: DDP, FSDP and DeepSpeed, from without and from within, and ranks that end or hang."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rlvr_debug.checkout import ROOT
from rlvr_debug.files import read_json

pytest.importorskip("trl", reason="trl is not installed: no trainer to check")


TRAIN = """
import json, os, sys, time
from benchmarks.check.case import TINY, plain, train
from benchmarks.check.faults import FAULTS
from benchmarks.check.settings import SETTINGS, apply_settings
from rlvr_debug.replay.store import digest
how = sys.argv[1]
backend = sys.argv[2] if len(sys.argv) > 2 else "ddp"
case = plain(str(TINY), how, 0, "out").told(max_steps=3, beta=0.04)
rank = os.environ["RANK"]
if os.environ["WORLD_SIZE"] == "3":  # with 16 rows each, which cut groups
    case = case.told(num_generations=12)
for each in how.split("+"):
    if each in SETTINGS:
        case = apply_settings(each, case)
    if each in FAULTS:
        case = FAULTS[each].planted(case)
if backend.startswith("zero"):
    zero = {"stage": int(backend[-1]), "stage3_param_persistence_threshold": 0}
    auto = ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps", "gradient_clipping")
    zero["stage3_gather_16bit_weights_on_model_save"] = True
    also = {"bf16": {"enabled": "auto"}, **dict.fromkeys(auto, "auto")}
    # as accelerate's launcher says it
    file = f"deepspeed-{rank}.json"
    open(file, "w").write(json.dumps({"zero_optimization": zero, **also}))
    os.environ |= {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": file}
if backend.startswith("fsdp"):  # accelerate takes it for GPUs alone
    import transformers
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType
    made = transformers.Trainer.create_accelerator_and_postprocess
    def on_cpu(trainer):
        PartialState()._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        made(trainer)
    transformers.Trainer.create_accelerator_and_postprocess = on_cpu
    from contextlib import nullcontext
    from torch.distributed.fsdp import _flat_param, _init_utils
    _init_utils._get_device_from_device_id = lambda *_: None  # a CPU's number is none to accelerate
    _flat_param.FlatParamHandle.to_cpu = nullcontext  # it is there
    os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": backend[4], "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
        "FSDP_USE_ORIG_PARAMS": str(backend != "fsdp1-flat"),
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_TRANSFORMER_CLS_TO_WRAP": "Qwen2DecoderLayer"}
if how == "raises" and rank == "1":
    raise ValueError("no such data")
if how == "ends" and rank == "1":
    sys.exit(0)
def hang(trainer):
    made = trainer._calculate_rewards
    def late(*args):
        if rank == "1":
            time.sleep(3600)
        return made(*args)
    trainer._calculate_rewards = late
def check_first(trainer):
    import rlvr_debug
    answer = rlvr_debug.check(trainer, steps=2)
    print("rank", rank, "was told", answer["first"], len(answer["segments"]), flush=True)
def check_along(trainer):
    from rlvr_debug import LiveCheck
    trainer.add_callback(LiveCheck(trainer, every=2))
from transformers import TrainerCallback
class Summing(TrainerCallback):
    def on_train_begin(self, *_, model, **__):
        for module in model.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(1)
                module.set_force_sum_reduction_for_comms(True)
class Moving(TrainerCallback):
    def on_step_end(self, *_, model, **__):
        if rank == "1":
            model.lm_head.weight.data.mul_(1.01)
def calls(callback):
    return lambda trainer: trainer.add_callback(callback())
then = {"hangs": hang, "check": check_first, "live": check_along, "summed": calls(Summing), "moved": calls(Moving)}.get(how, lambda _: None)
trainer = train(case.then(then))
if how == "live" and rank == "0":
    print("logged", [row["check/deviates"] for row in trainer.state.log_history if "check/deviates" in row])
from rlvr_debug.recorders.keeping import local
model = trainer.accelerator.unwrap_model(trainer.model)
held = {name: digest(local(weight)) for name, weight in model.named_parameters()}
open(f"weights-{rank}.json", "w").write(json.dumps(held))
"""

RAISES, HANGS = (  # the lines
    TRAIN[: TRAIN.index(what)].count("\n") + 1 for what in ("no such data", "time.sleep(3600)")
)
ENDED = "error: rank 1: train.py: ended before its steps were recorded"


def together(folder: Path, *words: str) -> tuple[int, str, str]:
    """Return the launcher's status and what it said of a check by two ranks; nothing that it started is left."""
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    process = subprocess.Popen(
        [sys.executable, *launcher, "-m", "rlvr_debug", "check", *words],
        cwd=folder,
        stdout=-1,
        stderr=-1,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "DS_ACCELERATOR": "cpu"},
    )
    try:
        out, err = process.communicate(timeout=400)
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


# in a folder of that name: the script with these words, by so many ranks, under the check or not; status, what was said
Start = Callable[..., tuple[int, str, Path]]


@pytest.fixture
def start(forks: Any, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Start the script as `together` does, without the launcher's and each rank's twelve seconds of imports."""

    def started(*words: str, ranks: int = 2, checked: bool = False) -> tuple[int, str, Path]:
        folder = tmp_path_factory.mktemp("started")
        script = folder / "train.py"
        script.write_text(TRAIN, encoding="utf-8")
        return *forks.run([str(script), *words], folder, 200, ranks, checked), folder

    return started


def answer(start: Start, *words: str, ranks: int = 2) -> Any:
    _, said, folder = start(*words, ranks=ranks, checked=True)
    assert (folder / "answer.json").is_file(), said[-2000:]
    return read_json(folder / "answer.json")


def weights(start: Start, *words: str) -> tuple[list[Any], str]:
    """Return each rank's digests of the weights that the script by itself ends with, and what it said."""
    status, said, folder = start(*words)
    assert status == 0, said[-2000:]
    return [read_json(folder / f"weights-{rank}.json") for rank in (0, 1)], said


@pytest.fixture(scope="module", autouse=True)
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder of these tests alone: DeepSpeed waits for ever for the lock of a run that was killed as it compiled there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("extensions")))
        yield


@cache
def need_compiler(backend: str) -> None:
    """Compile what DeepSpeed needs, before the time of a run counts. backend: its first letters."""
    if backend != "zero":
        return
    if not (find_spec("deepspeed") and shutil.which("g++")):
        pytest.skip("deepspeed or the compiler that it needs is missing")
    words = [sys.executable, "-c", "from deepspeed.comm.torch import build_shm_op as b; b()"]
    subprocess.run(words, env={**os.environ, "DS_ACCELERATOR": "cpu"}, check=True)


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["ddp", "zero2"])
def test_a_launched_check_answers_once_and_trains_the_same_weights_on_every_rank(
    tmp_path: Path, start: Start, backend: str
) -> None:
    need_compiler(backend[:4])
    status, out, err = together(tmp_path, "--save", "record", "train.py", "healthy", backend)
    assert status == 0, err
    assert out.count("Nothing was found") == 1
    told = read_json(tmp_path / "record" / "record.json")
    plain, _ = weights(start, "healthy", backend)
    for process, by_itself in zip(told["processes"], plain, strict=True):
        assert process["weights"][-1] == by_itself
        assert process["weights"][0] != by_itself


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["zero1", "zero2", "zero3", "fsdp1", "fsdp2"])
def test_a_policy_in_pieces_is_seen_in_every_segment_and_trains_as_without_the_check(
    start: Start, backend: str
) -> None:
    need_compiler(backend[:4])
    found = answer(start, "plain", backend)
    assert found["first"] is None, found["answer"]
    assert "not seen" not in {each["status"] for each in found["segments"]}
    plain, _ = weights(start, "plain", backend)
    live, said = weights(start, "live", backend)
    assert said.count("Nothing was found; 1 of 23 segments was not seen: saved weights.") == 2
    assert plain == weights(start, "check", backend)[0] == live
    assert (plain[0] == plain[1]) == (backend in ("zero1", "zero2"))


# how, backend and ranks, and the first segment that deviates
ASKED = (
    *(("tokens-not-gathered", "fsdp2", 2, "loss"), ("summed", "fsdp2", 2, "gradient")),
    *(("slice-of-the-first-rank", "zero2", 2, "advantages"), ("moved", "zero2", 2, "processes")),
    *(("rows-not-sharded", "zero3", 2, "processes"), ("loss-times-the-ranks", "fsdp1", 2, "loss")),
    ("gradients-not-reduced", "ddp", 3, "processes"),
    ("groups-cut-by-rank", "ddp", 3, "advantages"),
    ("moved", "fsdp2", 2, "weights between steps"),
    *(("kl", "ddp", 3, None), ("lora", "zero2", 2, None), ("lora", "fsdp2", 2, None)),
    *(("bf16", "fsdp2", 2, None), ("bf16", "zero2", 2, None)),
    ("bf16+moments-forgotten", "zero2", 2, "optimizer step"),
)


@pytest.mark.heavy
@pytest.mark.parametrize(("how", "backend", "ranks", "first"), ASKED)
def test_a_fault_is_found_and_nothing_else_whatever_the_backend(
    start: Start, how: str, backend: str, ranks: int, first: str | None
) -> None:
    need_compiler(backend[:4])
    found = answer(start, how, backend, ranks=ranks)
    assert found["first"] == first, found["answer"]


@pytest.mark.heavy
def test_a_fault_in_a_launched_check_is_status_3_on_every_rank_and_one_answer(
    tmp_path: Path,
) -> None:
    status, out, err = together(tmp_path, "train.py", "gradients-not-reduced")
    assert status
    assert out.count("\nprocesses: ") == 1
    assert err.count("exitcode  : 3") == 2


@pytest.mark.heavy
def test_a_policy_whose_parameters_are_gone_is_refused_in_one_line(tmp_path: Path) -> None:
    status, out, err = together(tmp_path, "train.py", "plain", "fsdp1-flat")
    assert (status, out) == (1, "")
    [error] = [each for each in err.splitlines() if each.startswith("error: ")]
    assert error.endswith("set `use_orig_params: true`, or FSDP2")


@pytest.mark.heavy
def test_checks_from_within_a_script_of_two_processes_answer_once_and_change_nothing(
    start: Start,
) -> None:
    """Before training and along it; each rank is told the same."""
    plain, _ = weights(start, "plain")
    before, said = weights(start, "check")
    assert said.count("Nothing was found") == 1
    told = [line.partition("told ")[2] for line in said.splitlines() if "was told" in line]
    assert len(told) == 2
    assert told[0] == told[1]
    assert told[0].startswith("None ")
    along, said = weights(start, "live")
    for step in (1, 3):
        assert f"check at step {step}: Nothing was found" in said
    assert said.count("check at step") == 2
    assert "logged [0.0, 0.0]" in said
    assert plain[0] == plain[1]
    assert plain == before == along
    assert not [*Path(tempfile.gettempdir()).glob("rlvr-debug-*-check-*")]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", f"{ENDED}: train.py:{RAISES}: ValueError: no such data"),
        ("ends", f"{ENDED}: exit status 0"),
        # within a call that all ranks have begun
        ("hangs", f"error: rank 1: waits or hangs at train.py:{HANGS}, after "),
    ],
)
def test_a_rank_that_ends_or_hangs_is_one_line_and_leaves_nothing_behind(
    tmp_path: Path, how: str, said: str
) -> None:
    limit = ("--limit", "30") if how == "hangs" else ()
    status, out, err = together(tmp_path, *limit, "train.py", how)
    assert status
    assert out == ""
    [error] = [each for each in err.splitlines() if each.startswith("error: ")]
    assert error.startswith(said)
    assert err.count("exitcode  : 2") == 2

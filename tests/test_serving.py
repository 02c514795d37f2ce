"""A model server as the sampler of held-out evaluation: a small one in the place of vLLM, for real, on loopback."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlvr_debug import venvs
from rlvr_debug.blocks import told
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.errors import InputError
from rlvr_debug.evaluation import evaluate_model
from rlvr_debug.files import read_json
from rlvr_debug.jobs import Evaluation, Sampling
from rlvr_debug.models.base_model import load_weights, save_weights
from rlvr_debug.sampling.base import Request
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.generate import base_sampler, sampler_of
from rlvr_debug.serving.client import ServedSampler
from rlvr_debug.serving.process import (
    Endpoint,
    read_endpoint,
    served,
    server_of,
    started,
    wait_until_ready,
    write_endpoint,
)
from rlvr_debug.serving.served import model_folder
from rlvr_debug.study.params import load_params
from tests.shared import wait
from tests.small_server import install
from tests.study_file import changed, study_file

TINY = ROOT / "models" / "tiny"
PARAMS = load_params(ROOT / "params.yaml")
VLLM = {**told(PARAMS.vllm), "environment": "vllm-cpu"}
SETTINGS = {"port": 0, "start_seconds": 120, "vllm": VLLM}
CHAT = Chat(TINY)
SERVER = Sampling("vllm", SETTINGS)
# scripts/serve.py, which takes this interpreter for that of vLLM
SERVE = """
import runpy, sys
from pathlib import Path
from rlvr_debug import venvs
python, *sys.argv = sys.argv[1:]
venvs.python_of = lambda name: Path(python)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def processes_with(word: str) -> list[psutil.Process]:
    """Those whose command line has that word somewhere."""
    found = psutil.process_iter(["cmdline", "status"])
    return [p for p in found if any(word in part for part in p.info["cmdline"] or [])]


def server_processes(there: Endpoint) -> list[psutil.Process]:
    """The guard and all under it."""
    guard = psutil.Process(there.pid)
    return [guard, *guard.children(recursive=True)]


@pytest.fixture(scope="module", autouse=True)
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The interpreter that is taken for vLLM's."""
    installed = install(tmp_path_factory.mktemp("checkout"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlvr_debug.venvs.python_of", lambda _: installed)
        yield installed


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Of a server with the shipped model on a socket, which is ready."""
    log = tmp_path_factory.mktemp("server") / "log.txt"
    with served(server_of(SERVER), TINY, log) as (there, _):
        wait_until_ready(there)
        yield there


def prompts(count: int) -> list[Request]:
    texts = ["What is 2 + 3?", "Who wrote it, and where?", "search", "", "a b c d e f g"]
    message = [{"role": "user", "content": "{}"}]
    return [
        Request(slot, CHAT.prompt([{**message[0], "content": texts[slot % 5]}], []), None)
        for slot in range(count)
    ]


def test_greedy_replies_over_http_are_those_in_process(endpoint: Endpoint) -> None:
    asked: Any = {"temperature": 0.0, "max_new_tokens": 24, "seed": 3}
    found = ServedSampler(endpoint, CHAT.ends).sample(prompts(5), **asked)
    expected = base_sampler(TINY, CHAT).sample(prompts(5), **asked)
    for sample, other in zip(found, expected, strict=True):
        assert (sample.ids, sample.stopped) == (other.ids, other.stopped)
        assert sample.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_a_reply_depends_on_its_seed_and_slot_and_on_nothing_asked_beside_it(
    endpoint: Endpoint,
) -> None:
    sampler = ServedSampler(endpoint, CHAT.ends)
    asked: Any = {"temperature": 1.0, "max_new_tokens": 16}
    together = sampler.sample(prompts(12), **asked, seed=1)
    order = random.Random(0).sample(range(12), 12)
    alone = {n: sampler.sample([prompts(12)[n]], **asked, seed=1)[0] for n in order}
    assert together == [alone[n] for n in range(12)]
    assert together != sampler.sample(prompts(12), **asked, seed=2)
    # equal prompts in slots 0 and 5 are a group's: they must differ
    assert together[0].ids != together[5].ids


def test_a_server_that_is_ours_answers_nobody_without_its_key(endpoint: Endpoint) -> None:
    for key in ("", "wrong"):
        sampler = ServedSampler(replace(endpoint, key=key), CHAT.ends)
        with pytest.raises(InputError, match=r"answered 401: .*expected the API key"):
            sampler.sample(prompts(1), temperature=0.0, max_new_tokens=2, seed=0)
    wait_until_ready(replace(endpoint, key=""))


def test_a_server_without_a_port_listens_where_nobody_else_can_enter(endpoint: Endpoint) -> None:
    socket_file = Path(endpoint.url.removeprefix("unix:"))
    assert socket_file.is_socket()
    assert socket_file.parent.stat().st_mode & 0o777 == 0o700
    assert [c for p in server_processes(endpoint) for c in p.net_connections("inet")] == []


def test_the_key_is_in_no_command_line_and_in_no_file_that_others_read(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    assert len(endpoint.key) > 20
    assert processes_with(endpoint.key) == []
    write_endpoint(tmp_path / "endpoint.json", endpoint)
    assert (tmp_path / "endpoint.json").stat().st_mode & 0o777 == 0o600
    assert read_endpoint(tmp_path / "endpoint.json") == endpoint


# --- loading, and what goes wrong


def test_a_server_that_ends_while_it_loads_is_one_line_with_its_reason(tmp_path: Path) -> None:
    with (
        served(server_of(SERVER), tmp_path, tmp_path / "log.txt") as (there, _),
        pytest.raises(
            InputError, match=r"ended before it was ready: error: .*: expected a tokenizer"
        ),
    ):
        wait_until_ready(there)


def test_a_server_that_loads_for_too_long_is_given_up(tmp_path: Path) -> None:
    server = server_of(Sampling("vllm", {**SETTINGS, "start_seconds": 0.3}))
    never = replace(server, argv=(sys.executable, "-c", "import time; time.sleep(600)"))
    with served(never, TINY, tmp_path / "log.txt") as (there, process):
        with pytest.raises(InputError, match=r"not ready within 0.3 s \(server.start_seconds\)"):
            wait_until_ready(there)
        assert process.poll() is None
    assert process.returncode == -signal.SIGKILL


def start(
    tmp_path: Path, port: int = 0, model: Path = TINY, said: Path | None = None
) -> subprocess.Popen[str]:
    """scripts/serve.py as the workflow calls it. said: a file for what it says, else it is read from the process."""
    server = {"port": port, "start_seconds": 120}
    given = {"sampler": "vllm", "server": server, "vllm": VLLM, "base_model": str(model)}
    study = study_file(tmp_path, changed(PARAMS, **given))
    words = ["--study", str(study), "--log", str(tmp_path / "log.txt")]
    words += ["--out", str(tmp_path / "endpoint.json")]
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            SERVE,
            str(venvs.python_of("vllm-cpu")),
            str(ROOT / "scripts" / "serve.py"),
            *words,
        ],
        stderr=said.open("w", encoding="utf-8") if said else subprocess.PIPE,
        text=True,
    )
    SERVICES.append(process)
    return process


SERVICES: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _services_end() -> Iterator[None]:
    """Those of a test that failed, too."""
    yield
    while SERVICES:
        SERVICES.pop().kill()


def test_a_port_that_another_program_has_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = start(tmp_path, port)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said == (
        f"error: server.port: cannot bind port {port} of 127.0.0.1 (Address already in use); "
        "choose a free port, or 0 for a Unix socket\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


@pytest.mark.heavy
def test_a_port_that_is_asked_for_is_the_one_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = start(tmp_path, port)
    try:
        wait(lambda: (tmp_path / "endpoint.json").exists())
        there = read_endpoint(tmp_path / "endpoint.json")
        assert there.url == f"http://127.0.0.1:{port}"
        wait_until_ready(there)
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.heavy
@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_a_service_that_is_ended_leaves_no_server(tmp_path: Path, how: str) -> None:
    """SIGTERM is what Snakemake sends after the last consumer; while it loads, and when it is ready."""
    for ready in (False, True):
        (tmp_path / "endpoint.json").unlink(missing_ok=True)
        process = start(tmp_path)
        wait(lambda: (tmp_path / "endpoint.json").exists())
        there = read_endpoint(tmp_path / "endpoint.json")
        if ready:
            wait_until_ready(there)
        place = there.url.removeprefix("unix:")
        assert processes_with(place)
        process.send_signal(signal.Signals[how])
        process.communicate()
        assert process.returncode == (0 if how == "SIGTERM" else -signal.SIGKILL)
        wait(lambda place=place: not processes_with(place), 5)  # type: ignore[misc]


def service_says(said: Path, count: int) -> list[str]:
    """What it has said, once that is so many lines. A server is started once more only after the first of them, that
    it is ready; /health may answer us before."""

    def lines() -> list[str]:
        return said.read_text(encoding="utf-8").splitlines()

    wait(lambda: len(lines()) >= count)
    return lines()


def kill(there: Endpoint) -> None:
    """The server, but not the guard."""
    [child] = wait(psutil.Process(there.pid).children)
    child.kill()


@pytest.mark.heavy
def test_a_server_that_is_killed_is_started_once_more_and_then_ends_its_service(
    tmp_path: Path,
) -> None:
    said = tmp_path / "said.txt"
    process = start(tmp_path, said=said)
    file = tmp_path / "endpoint.json"
    wait(file.exists)
    first = read_endpoint(file)
    assert service_says(said, 1) == ["the server is ready"]
    asked: Any = {"temperature": 1.0, "max_new_tokens": 16, "seed": 1}
    replies = ServedSampler(first, CHAT.ends).sample(prompts(4), **asked)
    kill(first)
    wait(lambda: read_endpoint(file) != first)
    second = read_endpoint(file)
    _, once, again = service_says(said, 3)
    assert once.startswith("the server ended with status 137: ")
    assert once.endswith("; starting it once more")
    assert again == "the server is ready"
    assert ServedSampler(second, CHAT.ends).sample(prompts(4), **asked) == replies
    kill(second)
    assert process.wait(timeout=30) == 2
    *_, ended = service_says(said, 4)
    assert ended.startswith("error: the server ended with status 137: ")


def test_a_server_that_never_was_ready_is_not_started_again(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait((tmp_path / "endpoint.json").exists)
    kill(read_endpoint(tmp_path / "endpoint.json"))
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said.startswith("error: the server ended with status 137: ")
    assert len(said.splitlines()) == 1


@pytest.mark.heavy
def test_replies_that_had_come_are_kept_when_a_server_takes_another_s_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed when half of the replies are there, and only the others are asked for again."""
    counted: list[int] = []
    one = ServedSampler._one

    async def counting(self: ServedSampler, *given: Any) -> Any:
        answer = await one(self, *given)
        counted.append(1)
        if len(counted) == 20:
            kill(running[-1])
        return answer

    running: list[Endpoint] = []
    with started(server_of(SERVER), TINY, tmp_path) as begin:

        def again() -> Endpoint:
            running.append(begin())
            return running[-1]

        asked: Any = {"temperature": 1.0, "max_new_tokens": 16, "seed": 1}
        expected = ServedSampler(again(), CHAT.ends).sample(prompts(40), **asked)
        monkeypatch.setattr(ServedSampler, "_one", counting)
        sampler = ServedSampler(running[-1], CHAT.ends, again)
        with pytest.warns(UserWarning, match="no answer after 3 tries: .*; waiting for another"):
            assert sampler.sample(prompts(40), **asked) == expected
        assert len(running) == 2
        assert len(counted) == 40
        counted.clear()
        with pytest.raises(InputError, match="no answer after 3 tries"):
            sampler.sample(prompts(40), **asked)
        assert len(running) == 2


# --- evaluation


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    prepare("musique", {**PARAMS.data_settings("musique"), "rows": 80, "heldout": 24}, folder)
    return folder / "heldout.jsonl"


def evaluated(rows: Path, out: Path, sampler: str, weights: Path | None, there: Path | None) -> Any:
    environment = PARAMS.settings("musique")
    asked = Sampling(sampler, SETTINGS, there)
    evaluate_model(Evaluation("musique", environment, TINY, weights, rows, 1.0, 0, asked), out)
    return read_json(out)


@pytest.mark.heavy
def test_greedy_held_out_evaluation_is_the_same_in_process_and_served(
    rows: Path, tmp_path: Path, endpoint: Endpoint
) -> None:
    write_endpoint(tmp_path / "endpoint.json", endpoint)
    served_by = evaluated(rows, tmp_path / "a", "vllm", None, tmp_path / "endpoint.json")
    in_process = evaluated(rows, tmp_path / "b", "in-process", None, None)
    assert served_by["greedy"] == in_process["greedy"]
    assert served_by["sampled"] != in_process["sampled"]  # other random numbers
    again = evaluated(rows, tmp_path / "c", "vllm", None, tmp_path / "endpoint.json")
    assert again == served_by


@pytest.mark.heavy
def test_trained_weights_are_served_by_a_server_of_their_own_that_ends(
    rows: Path, tmp_path: Path
) -> None:
    """Weights of noise: whoever answers well has the base model."""

    def mine() -> set[int]:
        children = psutil.Process(os.getpid()).children(recursive=True)
        return {p.pid for p in children if "small_server" in " ".join(p.cmdline())}

    before = mine()
    weights = {k: v * 0.1 for k, v in load_weights(TINY / "model.safetensors").items()}
    save_weights(weights, tmp_path / "model.safetensors")
    given = (tmp_path / "model.safetensors", None)
    served_by = evaluated(rows, tmp_path / "a", "vllm", *given)
    assert served_by["greedy"] == evaluated(rows, tmp_path / "b", "in-process", *given)["greedy"]
    base = evaluated(rows, tmp_path / "c", "in-process", None, None)
    assert served_by["greedy"]["reward"] < base["greedy"]["reward"]
    assert mine() == before


def test_a_shared_server_has_the_base_model_and_not_somebody_s_weights(tmp_path: Path) -> None:
    there = tmp_path / "endpoint.json"
    with (
        pytest.raises(InputError, match="that server has the base model, and cannot sample for"),
        sampler_of(replace(SERVER, endpoint=there), TINY, tmp_path / "weights", CHAT),
    ):
        pass


@pytest.mark.heavy
def test_a_server_that_is_killed_in_mid_rollout_is_one_line(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlvr_debug.serving.served._NOTICED", 1.0)
    with served(server_of(SERVER), TINY, tmp_path / "log.txt") as (there, process):
        wait_until_ready(there)
        write_endpoint(tmp_path / "endpoint.json", there)
        killer = threading.Timer(0.05, os.killpg, (process.pid, signal.SIGKILL))
        ask = ServedSampler.sample

        def sample(self: ServedSampler, *given: Any, **named: Any) -> Any:
            if killer.ident is None:  # not started yet
                killer.start()
            return ask(self, *given, **named)

        monkeypatch.setattr(ServedSampler, "sample", sample)
        gone = r"/v1/completions: no answer after 3 tries: .*json: no new server within 1 s"
        with pytest.raises(InputError, match=gone), pytest.warns(UserWarning, match="waiting for"):
            evaluated(rows, tmp_path / "out.json", "vllm", None, tmp_path / "endpoint.json")
        killer.join()
    assert not (tmp_path / "out.json").exists()


def test_trained_weights_are_served_without_the_index_of_the_base_model_s_shards(
    tmp_path: Path,
) -> None:
    base, weights = tmp_path / "base", tmp_path / "trained.safetensors"
    base.mkdir()
    save_weights(load_weights(TINY / "model.safetensors"), weights)
    for name in ("config.json", "model.safetensors.index.json", "model-00001-of-00001.safetensors"):
        (base / name).write_text("{}")
    with model_folder(base, weights) as folder:
        assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}

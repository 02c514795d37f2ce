"""vLLM as the sampler without its server: the command line, what it may answer, what is refused."""

import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rlvr_debug.blocks import told
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, read_yaml, write_json
from rlvr_debug.grpo.policy import build_policy
from rlvr_debug.jobs import Sampling
from rlvr_debug.models.base_model import load_model
from rlvr_debug.sampling.base import Sample
from rlvr_debug.serving.client import ServedPolicy, sample_of
from rlvr_debug.serving.process import Endpoint, first_error, server_of
from rlvr_debug.serving.vllm import vllm_arguments, vllm_variables
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params
from tests.study_file import changed, overlaid, refused

CASES = read_yaml(Path(__file__).with_suffix(".yaml"))

TINY = ROOT / "models" / "tiny"
PARAMS = load_params(ROOT / "params.yaml")
GPU: dict[str, Any] = told(PARAMS.vllm)
CPU: dict[str, Any] = {**GPU, "environment": "vllm-cpu"}


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


def test_the_server_asks_no_hub_and_sees_no_package_of_ours_but_the_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", "ours")
    python = tmp_path / "python"
    python.write_text("")
    monkeypatch.setattr("rlvr_debug.venvs.python_of", lambda _: python)
    server = server_of(Sampling("vllm", {"port": 0, "start_seconds": 1, "vllm": CPU}))
    assert server.argv[0] == str(python)
    assert server.variables["PYTHONPATH"] == str(ROOT / "src")
    assert server.variables["HF_HUB_OFFLINE"] == "1"


def test_an_environment_that_is_not_built_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rlvr_debug.venvs.python_of", lambda name: tmp_path / name)
    with pytest.raises(InputError, match=r"vllm: no such file, .*scripts/build_env.py vllm\)"):
        server_of(Sampling("vllm", {"port": 0, "start_seconds": 1, "vllm": GPU}))


def test_only_a_study_with_vllm_needs_its_environment() -> None:
    assert PARAMS.sampler_venvs == []
    assert replace(PARAMS, sampler="vllm").sampler_venvs == ["vllm"]
    assert changed(PARAMS, sampler="vllm", vllm=CPU).sampler_venvs == ["vllm-cpu"]


@pytest.mark.parametrize(
    ("change", "said"), CASES["what vllm could not do is one line before the study"], ids=str
)
def test_what_vllm_could_not_do_is_one_line_before_the_study(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    assert refused(tmp_path, sampler="vllm", vllm=change) == said


# --- what it may answer

EOS = 7


def completion(ids: list[int], reason: str, logprobs: list[Any] | None = None) -> dict[str, Any]:
    values = [-0.5] * len(ids) if logprobs is None else logprobs
    choice = {"token_ids": ids, "finish_reason": reason, "logprobs": {"token_logprobs": values}}
    return {"model": "policy", "choices": [choice]}


def test_a_reply_has_stopped_if_the_server_says_so_and_its_last_id_does() -> None:
    def read(ids: list[int], reason: str, limit: int) -> Sample:
        return sample_of(completion(ids, reason), limit, {EOS}, "policy")

    assert read([1, EOS], "stop", 3) == Sample([1, EOS], [-0.5, -0.5], True)
    assert read([1, 2], "length", 2) == Sample([1, 2], [-0.5, -0.5], False)
    # the end of the turn is the last token that there was room for
    assert read([1, EOS], "stop", 2).stopped


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (completion([1, 2], "length"), r"cut a reply at 2 tokens, expected 3 or an end-of-turn token: .*vllm.max_model_len"),
        (completion([1], "stop"), "ended a reply with reason 'stop'"),
        (completion([], "stop"), "ended a reply with reason 'stop'"),
        (completion([EOS, 1], "stop"), "ended a reply with reason 'stop'"),
        (completion([1, 2, EOS], "length"), "ended a reply with reason 'length'"),
        (completion([1, 2, 3], "abort"), "ended a reply with reason 'abort'"),
        (completion([1, EOS], "stop", [-0.5]), "2 token ids, but 1 log-probabilities"),
        (completion([1, EOS], "stop", [-0.5, None]), "expected a completion"),
        ({"choices": []}, "expected a completion"),
        ({"choices": [{"text": "no ids"}]}, "expected a completion"),
        ([], "expected a completion"),
        (None, "expected a completion"),
        ({**completion([1, EOS], "stop"), "model": "case@3"}, "serves model 'case@3', expected 'policy'"),
    ],
    ids=str,
)  # fmt: skip
def test_an_answer_that_is_not_what_was_asked_for_is_refused(answer: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        sample_of(answer, 3, {EOS}, "policy")


# what it says as it ends: vLLM 0.32
NOISE = "(APIServer pid=1) WARNING 11-22 03:13 [utils.py:255] This can cause errors like `OSError: [Errno 24]`"


@pytest.mark.parametrize(
    ("log", "said"), CASES["of what a server says as it ends the cause is shown"]
)
def test_of_what_a_server_says_as_it_ends_the_cause_is_shown(
    tmp_path: Path, log: str, said: str
) -> None:
    (tmp_path / "log.txt").write_text(f"{NOISE}\n{log}\n", encoding="utf-8")
    assert first_error(tmp_path / "log.txt") == said


# --- what it may not train


def test_tied_embeddings_that_a_reload_would_leave_as_they_were_are_refused(
    tmp_path: Path,
) -> None:
    """docs/vllm.md: answered with 200, and 2.2 nats off."""
    model = tmp_path / "tied"
    shutil.copytree(TINY, model)
    config = read_json(model / "config.json")
    write_json(model / "config.json", {**config, "tie_word_embeddings": True})
    cpu = {"sampler": "vllm", "base_model": str(model), "vllm": {"environment": "vllm-cpu"}}
    assert refused(tmp_path, **cpu) == (
        "key 'training.lora_r' is 0 in arm 'case', expected more: the base model's "
        "embeddings are tied, and vLLM on CPUs keeps the old output layer when it reloads "
        "such weights, without a word"
    )
    overlaid(tmp_path, **cpu, training={"lora_r": 8})


@pytest.mark.parametrize("shared_by", ["arm", "study"])
def test_runs_that_train_all_weights_cannot_share_a_server(tmp_path: Path, shared_by: str) -> None:
    said = refused(tmp_path, design="fixed", sampler="vllm", vllm={"shared_by": shared_by})
    assert f"expected more with vllm.shared_by {shared_by}: one" in said


# --- a policy that is followed


class Told(BaseHTTPRequestHandler):
    """What vLLM's server is told, by path, and of weights whether they were there then."""

    heard: ClassVar[list[tuple[str, str]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        place = body.get("lora_path") or body.get("kwargs", {}).get("weights_path")
        assert place is None or any(Path(place).iterdir())
        said = body.get("lora_name") or (Path(place).name if place else "")
        self.heard.append((self.path, said))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")


@pytest.fixture
def there() -> Iterator[Endpoint]:
    """The endpoint of a server that listens to what it is told."""
    Told.heard.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Told) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Endpoint(f"http://127.0.0.1:{server.server_port}", "", "policy", 0, "", 1)
        server.shutdown()


@pytest.mark.parametrize("lora_r", [0, 4])
def test_a_run_that_goes_on_serves_its_policy_under_the_step_that_it_is_at(
    there: Endpoint, tmp_path: Path, lora_r: int
) -> None:
    training = next(runs(PARAMS)).training
    settings = replace(training, lora_r=lora_r, lora_alpha=8)
    policy = build_policy(load_model(TINY, "sdpa"), None, settings, seed=0)
    served = ServedPolicy(there, ends={0}, name="run", folder=tmp_path)
    served.begin(policy, {}, step=3)
    assert served.served == "run@3"
    served.follow(policy)
    assert served.served == "run@4"
    # the weights that are no longer served are gone
    assert [place.name for place in tmp_path.iterdir()] == ["00000004"]
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    reload, reset = "/collective_rpc", "/reset_prefix_cache"
    if lora_r:
        assert Told.heard == [(load, "run@3"), (load, "run@4"), (unload, "run@3")]
    else:
        assert Told.heard == [
            *((reload, "00000003"), (reset, "")),
            *((reload, "00000004"), (reset, "")),
        ]

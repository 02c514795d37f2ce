"""The environments as tasksets of verifiers 0.4 (verifiers.v1), for vf-eval and trainers built on it.

The only file that knows verifiers: nothing else imports it, and the package works without it. What
comes out is what our own rollouts give: messages, tools, tool results, reward parts and reward all
come from the environment. Here is only the way from a trace to a `Transcript`.

The settings and their defaults are those of an environment's settings.py.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, get_type_hints

import mcp_types
import verifiers.v1 as vf
from pydantic import create_model

from rlvr_debug.data.prepare import read_splits
from rlvr_debug.environments import (
    build_environment,
    environment_names,
    settings_of,
    task_of,
)
from rlvr_debug.environments.base import Environment, ToolCall, Transcript, answer, answer_calls
from rlvr_debug.environments.settings import OURS_ALONE
from rlvr_debug.sampling.tool_calls import hermes


def transcript(trace: vf.Trace, row: Any, environment: Environment) -> Transcript:
    """What a trace's model said and did, as our rollouts note it.

    Calls are made again: they are pure, so a stored trace is scored like a live one.
    """
    said = Transcript()
    cut = {call.node for call in trace.calls if call.finish_reason == "length"}
    for index, node in enumerate(trace.nodes):
        if not (node.sampled and isinstance(node.message, vf.AssistantMessage)):
            continue
        said.replies.append(_text(node.message))
        last = len(said.replies) == environment.max_turns
        # a reply that the limit cut ends a rollout: its calls are not made
        calls = [] if index in cut else hermes(said.replies[-1])
        answer_calls(calls, row, environment, said, last=last)
    return said


def _text(message: vf.AssistantMessage) -> str:
    """A reply as the model wrote it: servers and renderers take its tool calls out."""
    calls = "".join(
        f'\n<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'
        for call in message.tool_calls or []
    )
    return f"{message.content or ''}{calls}"


class Settings(vf.TaskConfig):
    """An environment's block of params.yaml (`environments.<name>`): `--env.taskset.task.*`."""

    environment: ClassVar[str]

    def own(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.model_dump(exclude=set(vf.TaskConfig.model_fields))
        return settings


class ToolsConfig(vf.ToolsetConfig):
    environment: str = ""
    settings: dict[str, Any] = {}


class Tools(vf.Toolset[ToolsConfig, vf.State]):
    """The environment's tools on a server of MCP, one per rollout: it answers for its task's row."""

    TOOL_PREFIX = None

    async def setup_task(self, task: Any) -> None:
        self._row = task.row

    def register(self, mcp: Any) -> None:
        """Publish each tool with its own schema: one made from a signature is another prompt."""
        environment = build_environment(self.config.environment, self.config.settings)

        async def list_tools() -> list[Any]:
            functions = [tool["function"] for tool in environment.tools]
            return [
                mcp_types.Tool(
                    name=each["name"],
                    description=each["description"],
                    input_schema=each["parameters"],
                )
                for each in functions
            ]

        async def call_tool(name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            result = answer(ToolCall(name, arguments), self._row, environment)
            return mcp_types.CallToolResult(
                content=[mcp_types.TextContent(type="text", text=result.text)]
            )

        mcp.list_tools, mcp.call_tool = list_tools, call_tool


class EnvironmentTask(vf.Task[vf.TaskData, vf.State, Settings]):
    """One row. It ends where our rollouts end, whatever limits the harness has."""

    def __init__(self, data: vf.TaskData, config: Settings | None = None) -> None:
        super().__init__(data, config)
        self.environment = build_environment(self.config.environment, self.config.own())

    @classmethod
    def toolsets(cls, config: Settings) -> list[vf.Toolset]:
        if not build_environment(config.environment, config.own()).tools:
            return []
        return [Tools(ToolsConfig(environment=config.environment, settings=config.own()))]

    @vf.stop
    async def token_limit(self, response: vf.Response) -> bool:
        return bool(response.finish_reason == "length")

    @vf.stop
    async def turn_limit(self, trace: vf.Trace) -> bool:
        return bool(trace.num_turns >= self.environment.max_turns)

    @vf.stop
    async def submitted(self, trace: vf.Trace) -> bool:
        return transcript(trace, self.data.row, self.environment).submitted is not None

    @vf.metric
    async def parts(self, trace: vf.Trace) -> dict[str, float]:
        return self.environment.score(
            self.data.row, transcript(trace, self.data.row, self.environment)
        )

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        return self.environment.reward(self.data.row, await self.parts(trace))


class RowsConfig(vf.TasksetConfig):
    """An environment's block of params.yaml (`data.<name>`), and which of its two splits to load."""

    split: Literal["train", "heldout"] = "heldout"
    source: Literal["synthetic", "jsonl", "hub"] = "synthetic"
    path: str | None = None
    heldout_path: str | None = None
    datasets: str | None = None
    heldout_datasets: str | None = None


class EnvironmentTaskset(vf.Taskset[EnvironmentTask, RowsConfig]):
    def load(self) -> Iterator[EnvironmentTask]:
        task, settings = self.task_type(), self.config.task
        environment = build_environment(settings.environment, settings.own())
        data = self.config.model_dump(exclude={*vf.TasksetConfig.model_fields, "split"})
        splits, _ = read_splits(settings.environment, data)
        for row in getattr(splits, self.config.split):
            prompt = environment.messages(row)
            yield task(task.data_type()(id=row.id, prompt=prompt, row=row), settings)


class LocalConfig(vf.SingleAgentEnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime=vf.SubprocessConfig())


class LocalEnv(vf.SingleAgentEnv, vf.Env[LocalConfig]):
    """Safe defaults: a harness with no tools but the environment's (the stock one gives a model a
    shell), on this machine instead of a remote one."""


def _settings(block: Any) -> dict[str, Any]:
    """Return the fields of an environment's block of params.yaml, each as its type and default for pydantic.

    Words of a command line are no numbers yet, so that these types are less strict.
    """
    usual, types = vars(block()), get_type_hints(block)
    return {name: (types[name], usual[name]) for name in usual}


def _taskset(name: str) -> type[EnvironmentTaskset]:
    """Make an environment's taskset, and the classes that verifiers wants with it."""
    task, own_blocks = task_of(name), settings_of(name)
    title = "".join(map(str.capitalize, name.split("_")))
    options = _settings(own_blocks.Settings)
    for ours in OURS_ALONE:
        del options[ours]
    settings = _named(create_model(f"{title}Settings", __base__=Settings, **options))
    settings.environment = name
    known = RowsConfig.model_fields
    own = {k: v for k, v in _settings(own_blocks.Data).items() if k not in known}
    own["task"] = (settings, settings.model_construct())
    config = _named(create_model(f"{title}Config", __base__=RowsConfig, **own))
    data = _named(create_model(f"{title}Data", __base__=vf.TaskData, row=(task.row, ...)))
    one = _subclass(f"{title}Task", EnvironmentTask, vf.Task[data, vf.State, settings])
    made: type[EnvironmentTaskset] = _subclass(
        f"{title}Taskset", EnvironmentTaskset, vf.Taskset[one, config]
    )
    return made


def _subclass(name: str, *bases: Any) -> Any:
    return _named(types.new_class(name, bases))


def _named(made: Any) -> Any:
    """Give a class its name in this module: other processes import it by that name."""
    made.__module__ = __name__
    globals()[made.__name__] = made
    return made


# by the environment's name
TASKSETS = {name: _taskset(name) for name in environment_names()}


if __name__ == "__main__":
    Tools.run()

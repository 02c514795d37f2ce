"""What a rollout needs of an environment, and what it hands back to be scored."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Environment", "ToolCall", "ToolResult", "Transcript", "parse_tool_calls"]

Message = dict[str, str]


@dataclass(frozen=True)
class ToolCall:
    """`error` says why the text between the tags is no call; name and arguments are then empty."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class ToolResult:
    """`indices`: the paragraphs that the text shows."""

    text: str
    indices: tuple[int, ...] = ()
    failed: bool = False


@dataclass
class Transcript:
    """What scoring may see: the model's own words, and which paragraphs its calls retrieved."""

    replies: list[str] = field(default_factory=list)
    retrieved: set[int] = field(default_factory=set)

    @property
    def last_reply(self) -> str:
        return self.replies[-1] if self.replies else ""


class Environment(Protocol):
    """Rows -> conversations -> reward parts. Pure but for caches: no state between rollouts."""

    name: str
    tools: list[dict[str, Any]]
    max_turns: int
    max_new_tokens: int
    weights: Mapping[str, float]

    def messages(self, row: Any) -> list[Message]: ...

    def call_tool(self, row: Any, call: ToolCall) -> ToolResult: ...

    def score(self, row: Any, transcript: Transcript) -> dict[str, float]:
        """Reward parts, each in [0, 1], one per weight."""
        ...


def combined_reward(parts: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Weighted mean of the parts, in [0, 1]."""
    return sum(weights[name] * parts[name] for name in weights) / sum(weights.values())


_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|$)", re.DOTALL)


def parse_tool_calls(reply: str) -> list[ToolCall]:
    """Hermes tool calls in a reply. A malformed or unclosed one is a call with an `error`."""
    calls = []
    for body, closing in _CALL.findall(reply):
        if not closing:
            calls.append(ToolCall(error="the tool call is not closed"))
            continue
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):  # ValueError: not JSON, or an integer of 4,300 digits
            calls.append(ToolCall(error="the tool call is not JSON"))
            continue
        name = value.get("name") if isinstance(value, dict) else None
        arguments = value.get("arguments", {}) if isinstance(value, dict) else None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            calls.append(ToolCall(error="the tool call needs a name and an object of arguments"))
            continue
        calls.append(ToolCall(name, arguments))
    return calls

"""Tool calls in a reply, as each family of chat templates asks the model to write them."""

import json
import re
from collections.abc import Callable
from typing import Any

from rlvr_debug.environments.base import ToolCall, spoken

_HERMES = re.compile(r"<tool_call>(.*?)(</tool_call>|$)", re.DOTALL)
_LLAMA_TAG = "<|python_tag|>"


def hermes(reply: str) -> list[ToolCall]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them (Qwen2.5, Qwen3)."""
    return [
        _call(body, "arguments") if closing else ToolCall(error="unclosed_call")
        for body, closing in _HERMES.findall(spoken(reply))
    ]


def llama3_json(reply: str) -> list[ToolCall]:
    """`{"name": ..., "parameters": {...}}` as the whole reply; its template knows one call at a time."""
    text = spoken(reply).strip()
    body = text.removeprefix(_LLAMA_TAG)
    if not body.startswith("{") and body == text:
        return []
    call = _call(body, "parameters")
    # cut in the middle of the object, or followed by something else: the first is unclosed
    if call.error and body.count("{") > body.count("}"):
        return [ToolCall(error="unclosed_call")]
    return [call]


# the names are those of vLLM's --tool-call-parser
PARSERS: dict[str, Callable[[str], list[ToolCall]]] = {"hermes": hermes, "llama3_json": llama3_json}


def _call(body: str, key: str) -> ToolCall:
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):  # ValueError: not JSON, or an integer of 4,300 digits
        return ToolCall(error="malformed_call")
    name = value.get("name") if isinstance(value, dict) else None
    arguments = value.get(key, {}) if isinstance(value, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return ToolCall(error="malformed_call")
    return ToolCall(name, arguments)

"""Our environments as TRL's: a class per environment whose methods are its tools (environment_factory)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from rlvr_debug.data.rows import Row
from rlvr_debug.environments.base import Environment, ToolCall, answer

__all__ = ["environment_class"]

_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list[int]}


def environment_class(environment: Environment, rows: Sequence[Row]) -> type:
    """What GRPOTrainer takes as environment_factory. Its dataset has a column `index`, the place in `rows`."""

    def reset(self: Any, index: int, **_: Any) -> None:
        self.row = rows[index]

    methods = {each["function"]["name"]: _method(each, environment) for each in environment.tools}
    return type(type(environment).__name__, (), {"reset": reset, **methods})


def _method(tool: dict[str, Any], environment: Environment) -> Callable[..., str]:
    """A method whose signature and docstring give the tool's own schema (transformers' get_json_schema)."""
    function = tool["function"]
    arguments = function["parameters"]["properties"]

    def method(self: Any, **given: Any) -> str:
        return answer(ToolCall(function["name"], given), self.row, environment).text

    kinds = {name: _TYPES[schema["type"]] for name, schema in arguments.items()}
    method.__name__ = function["name"]
    method.__doc__ = "\n".join(
        [function["description"], "", "Args:"]
        + [f"    {name}: {schema['description']}" for name, schema in arguments.items()]
    )
    # without a return type, which would go into the schema
    method.__annotations__ = dict(kinds)
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        + [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
            for name, kind in kinds.items()
        ]
    )
    return method

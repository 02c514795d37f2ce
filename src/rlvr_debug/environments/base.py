"""What a rollout needs of an environment, and what it hands back to be scored."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonschema

Message = dict[str, str]
Tool = dict[str, Any]

# what can be wrong with a tool call; each is counted by this name
CALL_ERRORS = ("unclosed_call", "malformed_call", "unknown_tool", "bad_arguments")


@dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it. `error` is one of CALL_ERRORS, or "" if it could be read."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class ToolResult:
    """What a call is answered with.

    indices: the paragraphs that the text shows. error: as in ToolCall, "" for a sound call.
    ends: whether the rollout ends with this call, which is then its answer.
    """

    text: str
    indices: tuple[int, ...] = ()
    error: str = ""
    ends: bool = False


@dataclass
class Transcript:
    """What scoring may see: the model's own words and calls, and which paragraphs these retrieved.

    submitted: the arguments of the call that ended the rollout. What tools said is not here, so that
    nobody can score it.
    """

    replies: list[str] = field(default_factory=list)
    calls: int = 0
    retrieved: set[int] = field(default_factory=set)
    submitted: Mapping[str, Any] | None = None

    @property
    def final(self) -> str:
        """The last reply without what was thought in it."""
        return spoken(self.replies[-1]) if self.replies else ""


class Environment(ABC):
    """Rows -> conversations -> reward parts. Pure but for caches: no state between rollouts.

    success: the reward part that is 1 where the answer is right. system: the system prompt of `messages`.
    offered: its tools, unless a setting says which. max_context: tokens that a conversation may have after a tool's
    answer, 0 for any number.
    """

    success: str
    system: str
    offered: tuple[Tool, ...] = ()
    max_context: int = 0

    def __init__(
        self, *, max_turns: int, max_new_tokens: int, weights: Mapping[str, float]
    ) -> None:
        self.tools = list(self.offered)
        self.max_turns = max_turns
        self.max_new_tokens = max_new_tokens
        # parts are summed in this order: a reward is the same to the last bit in whatever order they were written
        self.weights = dict(sorted(weights.items()))

    def messages(self, row: Any) -> list[Message]:
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": row.question},
        ]

    def call_tool(self, row: Any, call: ToolCall) -> ToolResult:
        """Answer a call of one of `tools`, with arguments of its schema: go through `answer`."""
        raise AssertionError("there are no tools")

    @abstractmethod
    def outcome(self, transcript: Transcript) -> str:
        """How a rollout ended that the model itself ended: answered, no_answer or what is between."""

    @abstractmethod
    def score(self, row: Any, transcript: Transcript) -> dict[str, float]:
        """Reward parts, each in [0, 1]: one per weight, and others that are only recorded."""

    def reward(self, row: Any, parts: Mapping[str, float]) -> float:
        """Return the weighted mean of the parts, in [0, 1]."""
        total = sum(self.weights[name] * parts[name] for name in self.weights)
        return total / sum(self.weights.values())


def spoken(reply: str) -> str:
    """A reply without its thinking: what follows `</think>`, and nothing that `<think>` leaves open."""
    return reply.rpartition("</think>")[2].partition("<think>")[0]


def tool(name: str, description: str, **arguments: tuple[str | dict[str, Any], str]) -> Tool:
    """A function tool in the schema of OpenAI.

    arguments: name -> (JSON type or, for what needs more, its JSON schema; description).
    """
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {
                    key: {
                        **({"type": kind} if isinstance(kind, str) else kind),
                        "description": text,
                    }
                    for key, (kind, text) in arguments.items()
                },
                "required": list(arguments),
            },
        },
    }


_EXPLAINED = {
    "unclosed_call": "the tool call is not closed",
    "malformed_call": "a tool call is a JSON object with a name and arguments",
}


def refused(call: ToolCall, tools: list[Tool]) -> ToolResult | None:
    """The answer to a call that cannot be made: a sentence that says what is wrong. Else None."""
    if call.error:
        return ToolResult(f"Error: {_EXPLAINED[call.error]}.", error=call.error)
    schemas = {each["function"]["name"]: each["function"]["parameters"] for each in tools}
    if call.name not in schemas:
        known = f"the tools are {', '.join(schemas)}" if schemas else "there are no tools"
        return ToolResult(f"Error: {known}.", error="unknown_tool")
    schema = {**schemas[call.name], "additionalProperties": False}
    if not jsonschema.Draft202012Validator(schema).is_valid(call.arguments):
        expected = ", ".join(f"{k} ({v['type']})" for k, v in schema["properties"].items())
        return ToolResult(f"Error: {call.name} takes {expected}.", error="bad_arguments")
    return None


def answer(call: ToolCall, row: Any, environment: Environment) -> ToolResult:
    """What any call is answered with, sound or not."""
    return refused(call, environment.tools) or environment.call_tool(row, call)


def answer_calls(
    calls: Sequence[ToolCall],
    row: Any,
    environment: Environment,
    transcript: Transcript,
    *,
    last: bool,
) -> list[ToolResult]:
    """Answer a reply's calls, up to one that ends the rollout; the transcript notes what they did.

    What is retrieved in the `last` turn, nobody reads: it does not count.
    """
    results = []
    for call in calls:
        result = answer(call, row, environment)
        results.append(result)
        transcript.calls += 1
        if not last:
            transcript.retrieved.update(result.indices)
        if result.ends:
            transcript.submitted = call.arguments
            break
    return results

"""Conversations as tokens: the only place where text becomes token ids.

A rollout is built token-in, token-out: sampled ids are kept as they are, and only what the model did
not write (the prompt, a tool's turn) is rendered by the tokenizer's chat template and encoded.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from rlvr_debug.environments.base import Message
from rlvr_debug.errors import InputError

__all__ = ["Chat"]

_USER, _CALL, _RESULT = "user text", "assistant text", "tool result text"


class Chat:
    """A tokenizer and its chat template."""

    def __init__(self, path: Path | str) -> None:
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(str(path))
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{path}: expected a tokenizer, found: {reason}") from None
        if self.tokenizer.chat_template is None:
            raise InputError(f"{path}: the tokenizer has no chat template, expected one")
        self.eos_id: int = self.tokenizer.eos_token_id

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text that was sampled, without the end-of-turn token."""
        if ids and ids[-1] == self.eos_id:
            ids = ids[:-1]
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def render(
        self, messages: list[Message], tools: list[dict[str, Any]], *, generate: bool
    ) -> str:
        """The chat template's text; `generate` ends it where the assistant begins to write."""
        text: str = self.tokenizer.apply_chat_template(
            messages, tools=tools or None, add_generation_prompt=generate, tokenize=False
        )
        return text

    def prompt(self, messages: list[Message], tools: list[dict[str, Any]]) -> list[int]:
        return self.encode(self.render(messages, tools, generate=True))

    def tool_turn(self, content: str) -> list[int]:
        """Ids from the end of a sampled reply to where the model writes again."""
        before, after, generation = self._around_tool_result()
        return self.encode(before + content + after + generation)

    def tool_turn_rendered_alone(self, content: str) -> list[int]:
        """The same turn as the difference of two renderings, neither of them made to generate.

        What verifiers 0.1.3 does: the template's text after the reply's end-of-turn token and the
        generation prompt are missing.
        """
        before, after, _ = self._around_tool_result()
        return self.encode(before.lstrip("\n") + content + after)

    @lru_cache(maxsize=1)  # noqa: B019 - a Chat lives as long as its process
    def _around_tool_result(self) -> tuple[str, str, str]:
        """The template's text (before a tool result, after it, generation prompt).

        It does not depend on the conversation, so it is rendered once and not per turn.
        """
        messages = [
            {"role": "user", "content": _USER},
            {"role": "assistant", "content": _CALL},
            {"role": "tool", "content": _RESULT},
        ]
        closed = self.render(messages, [], generate=False)
        generation = self.render(messages, [], generate=True).removeprefix(closed)
        before, after = closed.split(_CALL)[1].split(_RESULT)
        return before.removeprefix(self.tokenizer.eos_token), after, generation

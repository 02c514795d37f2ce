"""Conversations as tokens: the only place where text becomes token ids.

Sampled ids are kept as they are, and only what the model did not write is rendered by the chat template and encoded, so
that a template that renders earlier replies otherwise (Qwen3 drops their thinking) cannot fork a rollout.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from rlvr_debug.environments.base import Message, ToolCall
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json
from rlvr_debug.sampling.tool_calls import PARSERS

_USER, _CALL = "user text", "assistant text"
# that of Llama 3.1's template; 3.2's would say another one every day, and the same study train on other prompts
_DATE = "26 Jul 2024"


class Chat:
    """A tokenizer, its chat template and the tool calls that this template asks for; `ends` are all tokens that end a reply."""

    def __init__(self, path: Path | str) -> None:
        try:
            # AutoTokenizer would import every model, which takes seconds of each job
            self.tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(
                str(path), local_files_only=True
            )
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{path}: expected a tokenizer, found: {reason}") from None
        template = self.tokenizer.chat_template
        if template is None:
            raise InputError(f"{path}: the tokenizer has no chat template; give it one")
        self._place = path
        marks = {"<tool_call>": "hermes", "ipython": "llama3_json"}
        self.parser = next((name for mark, name in marks.items() if mark in template), None)
        self.eos_id: int = self.tokenizer.eos_token_id
        self.ends = _ends(Path(path) / "config.json", self.eos_id)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text that was sampled, without the end-of-turn token."""
        if ids and ids[-1] in self.ends:
            ids = ids[:-1]
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def tool_calls(self, reply: str) -> list[ToolCall]:
        return PARSERS[self.parser](reply) if self.parser else []

    def render(
        self, messages: list[Message], tools: list[dict[str, Any]], *, generate: bool
    ) -> str:
        """Return the chat template's text; `generate` ends it where the assistant begins to write."""
        if tools and not self.parser:
            raise InputError(
                f"{self._place}: the chat template does not support tools, expected one with <tool_call> (Qwen2.5, "
                "Qwen3, Hermes) or the role ipython (Llama 3)"
            )
        try:
            text: str = self.tokenizer.apply_chat_template(
                messages,
                tools=tools or None,
                add_generation_prompt=generate,
                tokenize=False,
                date_string=_DATE,
            )
        except TemplateError as error:  # such as of Gemma 2, which has no system prompt
            raise InputError(f"{self._place}: the chat template raised: {error}") from None
        return text

    def prompt(self, messages: list[Message], tools: list[dict[str, Any]]) -> list[int]:
        return [*self._prompt(json.dumps([messages, tools]))]

    @lru_cache(maxsize=512)  # noqa: B019 - a Chat lives as long as its process
    def _prompt(self, asked: str) -> tuple[int, ...]:
        """A group has the same prompt for each rollout, and evaluation reads each twice."""
        messages, tools = json.loads(asked)
        return tuple(self.encode(self.render(messages, tools, generate=True)))

    def tool_turn(self, contents: Sequence[str]) -> list[int]:
        """Return ids from the end of a sampled reply to where the model writes again, with an answer to each of its calls."""
        return [*self._answered(tuple(contents))]

    @lru_cache(maxsize=4096)  # noqa: B019 - a Chat lives as long as its process
    def _answered(self, contents: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.encode(self._tool_turn(contents) + self.generation_prompt()))

    def tool_turn_rendered_alone(self, contents: Sequence[str]) -> list[int]:
        """Return the turn as verifiers 0.1.3 does: without the text after the reply's end-of-turn token and generation prompt."""
        return self.encode(self._tool_turn(contents).lstrip("\n"))

    def _tool_turn(self, contents: Sequence[str]) -> str:
        """The template's text after a reply's end-of-turn token. It does not depend on the reply."""
        messages = [
            {"role": "user", "content": _USER},
            {"role": "assistant", "content": _CALL},
            *({"role": "tool", "content": content} for content in contents),
        ]
        _, _, after = self.render(messages, [], generate=False).partition(_CALL)
        return after.removeprefix(self.tokenizer.eos_token)

    @lru_cache(maxsize=1)  # noqa: B019 - a Chat lives as long as its process
    def generation_prompt(self) -> str:
        """What the template writes where the model's reply begins."""
        messages = [{"role": "user", "content": _USER}]
        closed = self.render(messages, [], generate=False)
        return self.render(messages, [], generate=True).removeprefix(closed)


def _ends(config: Path, eos_id: int) -> frozenset[int]:
    """Return the tokens that end a turn: the tokenizer's and those of config.json (Llama 3 has one more for calls)."""
    values = read_json(config) if config.is_file() else {}
    found = values.get("eos_token_id") if isinstance(values, dict) else None
    others = found if isinstance(found, list) else [found]
    return frozenset({eos_id, *(other for other in others if other is not None)})

"""Settings of a run that its console shows: a printed configuration, or the command that launched it."""

import ast
import re
import shlex
from collections.abc import Iterator
from typing import Any

from rlvr_debug.logs.console import Line, Reader
from rlvr_debug.logs.names import ARGUMENTS, dotted

_MOST = 1 << 18  # characters of a printed configuration
_CALL = re.compile(r"\b\w*(?:Config|Arguments|Args|Namespace)\(")
_ARGUMENT = re.compile(
    r"""\b(\w+)=((?:'[^']*'|"[^"]*"|\[[^\]]*\]|\{[^}]*\}|<[^>]*>|\([^)]*\)|[^,()\n])*)"""
)
_COMMAND = re.compile(
    r"(?:^|[\s/])(?:python[\d.]*|torchrun|accelerate launch|deepspeed|swift rlhf|trl \w+) .*"
)
# numbers that an option, or an override with dots in its name, sets: two of known names are a launch of whatever program
_SET = re.compile(r"""(?:^|\s)(?:--([\w-]+)[= ]|[+~]*(\w+(?:\.\w+)+)=)['"]?-?\.?\d""")
# what Megatron prints of its arguments, and slime with it
_DOTTED = re.compile(r"\s*(\w+) \.{3,} (.*)")
_OPTION = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_OVERRIDE = re.compile(r"[+~]*([A-Za-z]\w*(?:[./]\w+)*)=(.*)", re.DOTALL)
_ENUM = re.compile(r"<[^>]*: '?([^'>]*)'?>")


class Launch(Reader):
    """found: by name, as the framework spells it, levels parted by dots; what was printed last counts."""

    name = "settings"
    marks = (
        *(b"Config(", b"Arguments(", b"Namespace(", b": {'", b" ......"),
        *(
            b"python ",
            b"python3 ",
            b"torchrun",
            b" launch ",
            b"swift ",
            b"trl grpo",
            b" --",
            b"actor_rollout_ref.",
        ),
    )
    _text = ""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Any] = {}
        self._settings_of = _of_call

    def read(self, line: Line) -> None:
        text = line.text
        if self._text:
            self._text += f"\n{text}"
        elif match := _CALL.search(text):
            self._text, self._settings_of = text[match.end() - 1 :], _of_call
        elif text.startswith("{'"):
            self._text, self._settings_of = text, _of_dictionary
        elif (match := _COMMAND.search(text)) or _is_launch(text):
            self._text = (match[0] if match else text).strip(" `")
            self._settings_of = _of_command
        elif match := _DOTTED.fullmatch(text):
            self.found[match[1]] = _value(match[2])
        if self._text and (self._is_whole() or len(self._text) > _MOST):
            self.end()
        self.open = bool(self._text)

    def end(self) -> None:
        text, self._text = self._text, ""
        if text and len(text) <= _MOST:
            self.found.update(self._settings_of(text))

    def _is_whole(self) -> bool:
        if self._settings_of is _of_command:
            return not self._text.endswith("\\")
        balanced = all(self._text.count(a) <= self._text.count(b) for a, b in ("()", "{}"))
        return balanced and not self._text.endswith(("(", ",", "{"))


def _of_call(text: str) -> Iterator[tuple[str, Any]]:
    return ((name, _value(value)) for name, value in _ARGUMENT.findall(text))


def _of_dictionary(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a nested dictionary; one without others within it is no configuration."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return
    if isinstance(found, dict) and any(isinstance(value, dict) for value in found.values()):
        yield from dotted(found)


def _is_launch(text: str) -> bool:
    known = {*ARGUMENTS, *(n for each in ARGUMENTS.values() for n in each["names"].values())}
    return len({(a or b).replace("-", "_") for a, b in _SET.findall(text)} & known) > 1


def _of_command(text: str) -> Iterator[tuple[str, Any]]:
    """Yield options, with their dashes away, and overrides as Hydra has them."""
    text = text.replace("\\\n", " ")
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    if "pip" in words:
        return
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if option := _OPTION.fullmatch(word):
            bare = following.startswith("--") or _OVERRIDE.fullmatch(following)
            value = option[2] if option[2] is not None else "True" if bare else following
            yield option[1].replace("-", "_"), _value(value)
        elif override := _OVERRIDE.fullmatch(word):
            yield override[1], _value(override[2])


def _value(text: str) -> Any:
    """Return a number, a truth value, a list of such, None, or the text."""
    text = text.strip()
    if enum := _ENUM.fullmatch(text):
        return enum[1]
    plain = {"true": True, "false": False, "null": None, "none": None}
    if text.lower() in plain:
        return plain[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text

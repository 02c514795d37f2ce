"""What the text of prompts and completions in a log says, whatever the model. Several causes read it."""

from __future__ import annotations

import json
from typing import Any

from rlvr_debug.logs.log import Log

# what begins a turn and ends it, and who speaks in the last one of a prompt: templates of Qwen, Llama 3 and Gemma
_TURNS = (
    ("<|im_start|>", "<|im_end|>", "assistant"),
    ("<|start_header_id|>", "<|eot_id|>", "assistant"),
    ("<start_of_turn>", "<end_of_turn>", "model"),
)
# what begins a tool call in a model's own words: Qwen and Hermes, Mistral, Llama
_CALLS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")


def messages(completion: Any) -> list[dict[str, Any]] | None:
    """Return a conversation's messages, None of what is no list of messages."""
    if not isinstance(completion, str) or not completion.startswith("["):
        return None
    try:
        found = json.loads(completion)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        return None
    return found


def ends_in_call(completion: Any) -> bool | None:
    """Return whether the last message asks for a tool, None of what is no conversation."""
    found = messages(completion)
    if found is None:
        return None
    last = found[-1] if found else {}
    if last.get("role") in ("tool", "user", "ipython"):
        return False
    text = last.get("content")
    written = isinstance(text, str) and any(begin in text for begin in _CALLS)
    return bool(last.get("tool_calls")) or written


def tool_results(log: Log) -> dict[int, list[str]]:
    """Return what tools said in each conversation that has any, by its row in Log.completions."""
    if "completion" not in log.completions:
        return {}
    found = {
        row: [str(m.get("content") or "") for m in told if m.get("role") in ("tool", "ipython")]
        for row, completion in zip(
            log.completions.index.to_numpy().tolist(), log.completions["completion"], strict=True
        )
        if (told := messages(completion)) is not None
    }
    return {row: said for row, said in found.items() if said}


def prompt_is_cut(prompt: Any) -> str | None:
    """Return "" for a whole prompt, "beginning" or "end" for what it lost; None where no template is known."""
    if not isinstance(prompt, str):
        return None
    for begin, end, speaker in _TURNS:
        if begin not in prompt and end not in prompt:
            continue
        if not prompt.rpartition(begin)[2].lstrip().startswith(speaker) or begin not in prompt:
            return "end"
        # each turn is closed but the last one, which is the model's to write
        return "" if prompt.count(begin) == prompt.count(end) + 1 else "beginning"
    return None

"""A sampled reply as vLLM answers it to the options that released trainers send."""

from __future__ import annotations

import json
from typing import Any

from openai.types.chat import ChatCompletion

from rlvr_debug.sampling.base import Sample
from rlvr_debug.sampling.chat import Chat

_TOKEN = "token_id:"


def completion(sample: Sample, chat: Chat) -> ChatCompletion:
    """Return the answer: the text with its tool calls as vLLM's parser named hermes has it, tokens by their ids."""
    text = chat.decode(sample.ids)
    calls = chat.tool_calls(text)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls and not any(call.error for call in calls):
        # what stands before the calls
        message["content"] = text.partition("<tool_call>")[0]
        message["tool_calls"] = [
            {
                "id": str(i),
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for i, call in enumerate(calls)
        ]
    tokens = [
        {"token": f"{_TOKEN}{token}", "logprob": logprob, "top_logprobs": []}
        for token, logprob in zip(sample.ids, sample.logprobs, strict=True)
    ]
    choice = {
        "index": 0,
        "finish_reason": "stop" if sample.stopped else "length",
        "message": message,
        "logprobs": {"content": tokens},
    }
    answer = {"id": "0", "created": 0, "model": "", "object": "chat.completion"}
    found: ChatCompletion = ChatCompletion.model_validate({**answer, "choices": [choice]})
    return found


def sample_of(answer: ChatCompletion) -> Sample:
    """Return the sample again that such an answer was made of."""
    [choice] = answer.choices
    tokens = choice.logprobs.content
    ids = [int(each.token.removeprefix(_TOKEN)) for each in tokens]
    return Sample(ids, [each.logprob for each in tokens], choice.finish_reason == "stop")

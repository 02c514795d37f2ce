"""An OpenAI-compatible endpoint on loopback over one of our samplers, as vLLM serves chats.

The prompt is the chat template's, with the request's tools; Hermes' tool calls leave the reply's text
and come back as `tool_calls`. A call that cannot be read stays text.

    python -m tests.openai_server    # the tiny model, until interrupted
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rlvr_debug.models.base_model import load_weights, model_config
from rlvr_debug.sampling.base import Request, Sampler
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler


@contextmanager
def serve(chat: Chat, sampler: Sampler, port: int = 0) -> Iterator[str]:
    """The endpoint's base URL, for as long as the context is open."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("application/json", "{}")  # of /health: it is ready

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:  # samplers are not made for threads
                completion = _complete(body, chat, sampler)
            if body.get("stream"):
                events = [*(json.dumps(chunk) for chunk in _chunks(completion)), "[DONE]"]
                self._answer("text/event-stream", "".join(f"data: {e}\n\n" for e in events))
            else:
                self._answer("application/json", json.dumps(completion))

        def _answer(self, kind: str, text: str) -> None:
            data = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _complete(body: dict[str, Any], chat: Chat, sampler: Sampler) -> dict[str, Any]:
    tools = body.get("tools") or []
    ids = chat.prompt([_as_text(message) for message in body["messages"]], tools)
    # no cache is kept: every request brings its whole conversation
    getattr(sampler, "reset", lambda: None)()
    limit = body.get("max_completion_tokens") or body["max_tokens"]
    [sample] = sampler.sample(
        [Request(0, ids, None)], temperature=body["temperature"], max_new_tokens=limit, seed=0
    )
    text = chat.decode(sample.ids)
    calls = chat.tool_calls(text) if tools else []
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls and not any(call.error for call in calls):
        message["content"] = text.partition("<tool_call>")[0] or None
        message["tool_calls"] = [
            {
                "id": f"call_{len(ids)}_{i}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, ensure_ascii=False),
                },
            }
            for i, call in enumerate(calls)
        ]
    reason = "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": "chatcmpl",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": reason if sample.stopped else "length",
            }
        ],
        "usage": {
            "prompt_tokens": len(ids),
            "completion_tokens": len(sample.ids),
            "total_tokens": len(ids) + len(sample.ids),
        },
    }


def _as_text(message: dict[str, Any]) -> dict[str, str]:
    """A message with its tool calls in its text, where the tiny model's template expects them."""
    functions = [call["function"] for call in message.get("tool_calls") or []]
    calls = "\n".join(
        f'<tool_call>\n{{"name": "{each["name"]}", "arguments": {each["arguments"]}}}\n</tool_call>'
        for each in functions
    )
    return {"role": message["role"], "content": (message.get("content") or "") + calls}


def _chunks(completion: dict[str, Any]) -> list[dict[str, Any]]:
    """The completion as a stream: one chunk with the message, one with its end, one with the usage."""
    head = {**completion, "object": "chat.completion.chunk"}
    usage, [choice] = head.pop("usage"), head.pop("choices")
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": i, **c} for i, c in enumerate(delta["tool_calls"])]
    return [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {
            **head,
            "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}],
        },
        {**head, "choices": [], "usage": usage},
    ]


def main() -> None:
    model = Path(__file__).parents[1] / "models" / "tiny"
    chat = Chat(model)
    weights = load_weights(model / "model.safetensors")
    with serve(chat, InProcessSampler(model_config(model), weights, chat.ends), 8000) as url:
        print(url, flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()

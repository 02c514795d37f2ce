"""A stand-in for the Hugging Face hub on this machine: it answers the hub's client with files of ours."""

import http.server
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any

COMMIT = "f" * 40
_PATH = re.compile(
    r"/(?:api/)?(?P<kind>models/|datasets/|)(?P<name>[\w.-]+/[\w.-]+)/"
    r"(?P<asked>revision|tree|resolve)/(?P<revision>[^/]+)(?P<file>.*)"
)


@dataclass
class Hub:
    """Files by repository, whose name begins with datasets/ where it is of data, and the paths that were asked for."""

    repositories: dict[str, dict[str, bytes]]
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Return status, content and headers."""
        self.asked.append(path)
        found = _PATH.fullmatch(path)
        kind = found["kind"].replace("models/", "") if found else ""
        files = self.repositories.get(f"{kind}{found['name']}") if found else None
        if found is None or files is None:
            return 404, b"", {"X-Error-Code": "RepoNotFound"}
        name = found["file"].strip("/")
        if found["asked"] == "resolve":
            if name not in files:
                return 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}
            return 200, files[name], {"ETag": f'"{_oid(files[name])}"'}
        if found["asked"] == "revision":
            siblings = [{"rfilename": each} for each in files]
            return _json({"id": found["name"], "sha": COMMIT, "siblings": siblings, "tags": []})
        entries = _tree(files, name)
        return _json(entries) if entries else (404, b"", {"X-Error-Code": "EntryNotFound"})


def _oid(content: bytes) -> str:
    return sha1(content).hexdigest()


def _json(value: Any) -> tuple[int, bytes, dict[str, str]]:
    return 200, json.dumps(value).encode(), {"Content-Type": "application/json"}


def _tree(files: Mapping[str, bytes], under: str) -> list[dict[str, Any]]:
    """Return files and folders below `under`, whichever depth was asked for: the client takes both."""
    below = {name: content for name, content in files.items() if name.startswith(under)}
    folders = {name.rpartition("/")[0] for name in below} - {"", under}
    return [
        *({"type": "directory", "path": name, "oid": _oid(name.encode())} for name in folders),
        *(
            {"type": "file", "path": name, "size": len(content), "oid": _oid(content)}
            for name, content in below.items()
        ),
    ]


@contextmanager
def serving(repositories: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    """Yield the hub while it answers on the loopback."""
    hub = Hub(repositories)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.respond(send=False)

        def do_GET(self) -> None:
            self.respond(send=True)

        def respond(self, send: bool) -> None:
            status, content, headers = hub.answer(self.path.partition("?")[0])
            self.send_response(status)
            for name, value in ({"X-Repo-Commit": COMMIT} | headers).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if send:
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def variables_of(url: str, home: Any) -> dict[str, str]:
    """Return what makes the hub's client ask there, and keep what it fetched in `home`."""
    return {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}

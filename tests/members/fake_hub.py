"""A fake of the Hugging Face hub in this process: the requests that huggingface_hub makes to read a
repository, as its documentation and its own tests describe them.

Files are stored as LFS objects: their ETag is their SHA-256. They can be damaged or gated.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from huggingface_hub import constants


@cache
def digest(content: bytes) -> str:
    """The SHA-256 of a file, computed once: that of a real model takes so long on a busy machine
    that the hub would seem not to answer."""
    return hashlib.sha256(content).hexdigest()


@dataclass
class Repository:
    """A repository of the fake hub."""

    files: dict[str, bytes]
    token: str | None = None
    """Who shows this token may read the files; None: everyone."""
    listed_sha256: dict[str, str] = field(default_factory=dict)
    """What the hub says about a file, where that is wrong."""

    @property
    def commit(self) -> str:
        files = sorted((name, digest(content)) for name, content in self.files.items())
        return hashlib.sha1(repr(files).encode()).hexdigest()

    def sha256(self, name: str) -> str:
        return self.listed_sha256.get(name) or digest(self.files[name])


class FakeHub:
    """Holds ``repositories`` by their names, and records all requests in ``asked``."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[tuple[str, str, str]] = []
        """Method, path and range of each request."""
        self.broken = False
        """Whether it answers every request with status 503."""
        self.silent = False
        """Whether it takes requests and never answers."""
        self.stopped = False
        self._server = _Server(("127.0.0.1", 0), _answering(self))
        threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, name: str, files: dict[str, bytes], **options: Any) -> Repository:
        self.repositories[name] = Repository(files, **options)
        return self.repositories[name]

    def downloads(self) -> list[tuple[str, str]]:
        """The path and the range of each file that was asked for."""
        return [
            (path.rpartition("/")[2], range)
            for method, path, range in self.asked
            if method == "GET" and not path.startswith("/api/")
        ]

    def stop(self) -> None:
        self.stopped = True
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may hang up at any time."""


@contextmanager
def running(patch: pytest.MonkeyPatch, cache: Path) -> Iterator[FakeHub]:
    """A fake hub that huggingface_hub asks in this process, with an empty cache."""
    hub = FakeHub()
    patch.setattr(constants, "ENDPOINT", hub.url)
    template = "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + template)
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    patch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    patch.delenv("HF_TOKEN", raising=False)
    try:
        yield hub
    finally:
        hub.stop()


def _answering(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            while hub.silent and not hub.stopped:
                time.sleep(0.01)
            if hub.stopped:
                self.close_connection = True
                return None
            address = urlsplit(self.path)
            hub.asked.append((self.command, address.path, self.headers.get("Range", "")))
            if hub.broken:
                return self.refuse(503)
            kind, _, rest = address.path[1:].partition("/")
            if kind == "api":
                name = rest.partition("/")[2].partition("/revision/")[0]
                return self.list(name)
            name, _, place = address.path[1:].partition("/resolve/")
            return self.resolve(name, place.partition("/")[2])

        def list(self, name: str) -> None:
            repository = hub.repositories.get(name)
            if repository is None:
                return self.refuse(404, "RepoNotFound")
            siblings = [{"rfilename": file} for file in repository.files]
            body = {"id": name, "sha": repository.commit, "siblings": siblings}
            self.answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

        def resolve(self, name: str, file: str) -> None:
            repository = hub.repositories.get(name)
            if repository is None:
                return self.refuse(404, "RepoNotFound")
            if file not in repository.files:
                return self.refuse(404, "EntryNotFound")
            if (
                repository.token
                and self.headers.get("Authorization") != f"Bearer {repository.token}"
            ):
                return self.refuse(403 if "Authorization" in self.headers else 401, "GatedRepo")
            about = {
                "X-Repo-Commit": repository.commit,
                "X-Linked-Etag": f'"{repository.sha256(file)}"',
                "X-Linked-Size": str(len(repository.files[file])),
            }
            content = repository.files[file]
            self.answer(200, content, {"ETag": f'"{digest(content)}"', **about})

        def refuse(self, status: int, code: str = "") -> None:
            self.answer(status, b"{}", {"X-Error-Code": code} if code else {})

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Answer

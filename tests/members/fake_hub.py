"""A fake of the Hugging Face hub in this process: the requests that huggingface_hub makes to read a
repository, as its documentation and its own tests describe them.

Files are stored as LFS objects: their ETag is their SHA-256. They can be cut off, damaged, gated or
served by a redirect, as the real hub redirects to its store.
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
from urllib.parse import parse_qs, urlsplit

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
    listed_size: dict[str, Any] = field(default_factory=dict)
    """What the hub says of a file's size, where that is wrong."""
    listed_commit: Any = ""
    """What its list names as the commit, where that is wrong."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers that describe its files, where they are wrong."""
    lacks: set[str] = field(default_factory=set)
    """Files that it lists and does not have."""
    describes: bool = True
    """Whether its list has sizes and hashes, which mirrors may leave out."""

    @property
    def commit(self) -> str:
        files = sorted((name, digest(content)) for name, content in self.files.items())
        return hashlib.sha1(repr(files).encode()).hexdigest()

    def sha256(self, name: str) -> str:
        return self.listed_sha256.get(name) or digest(self.files[name])


class FakeHub:
    """Holds ``repositories`` by their names, and records all requests in ``asked``. One with the
    name ``user/model@tag`` holds the files of that revision."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[tuple[str, str, str]] = []
        """Method, path and range of each request."""
        self.tokens: list[str | None] = []
        """Who showed which token, request by request."""
        self.hosts: list[str] = []
        """Which host was asked, request by request."""
        self.cuts: list[int] = []
        """The next downloads end after so many bytes."""
        self.broken = False
        """Whether it answers every request with status 503."""
        self.redirects = False
        """Whether files are served under another address."""
        self.list_body: bytes | None = None
        """What it sends as the list of files, whatever the repository."""
        self.list_redirects = False
        """Whether lists of files are served under another address."""
        self.endless: set[str] = set()
        """What never ends: a "list", a "file", an "error"."""
        self.sent = 0
        """How much was sent of what never ends."""
        self.drip_s = 0.0
        """What never ends pauses for so long after each byte."""
        self.ranges = True
        """Whether it sends parts of files. Without that, it sends whole files."""
        self.silent = False
        """Whether it takes requests and never answers."""
        self.stopped = False
        self.pause = threading.Event()
        """Cleared: downloads wait at their cut instead of ending there."""
        self.pause.set()
        self._server = _Server(("127.0.0.1", 0), _answering(self))
        threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.elsewhere = self.url.replace("127.0.0.1", "localhost")
        """The address of another host, which gets no token."""

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
        self.pause.set()
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
            hub.tokens.append(self.headers.get("Authorization"))
            hub.hosts.append(self.headers["Host"].partition(":")[0])
            if "error" in hub.endless:
                return self.send_endlessly(503)
            if hub.broken:
                return self.refuse(503)
            kind, _, rest = address.path[1:].partition("/")
            if kind == "api":
                if hub.list_redirects and self.headers["Host"].startswith("127.0.0.1"):
                    return self.answer(302, b"", {"Location": f"{hub.elsewhere}{self.path}"})
                if hub.list_body is not None:
                    return self.answer(200, hub.list_body, {"Content-Type": "application/json"})
                if "list" in hub.endless:
                    return self.send_endlessly(200)
                name = rest.partition("/")[2].partition("/revision/")[0]
                return self.list(name, "blobs" in parse_qs(address.query))
            if kind == "store":
                return self.send_file(rest)
            name, _, place = address.path[1:].partition("/resolve/")
            revision, _, file = place.partition("/")
            name = name.removeprefix("datasets/")
            if revision == "none":
                return self.refuse(404, "RevisionNotFound")
            of_revision = f"{name}@{revision}"
            return self.resolve(of_revision if of_revision in hub.repositories else name, file)

        def list(self, name: str, described: bool) -> None:
            repository = hub.repositories.get(name)
            if repository is None:
                return self.refuse(404, "RepoNotFound")
            siblings = []
            for file, content in repository.files.items():
                entry: dict[str, Any] = {"rfilename": file}
                if described and repository.describes:
                    sha256 = repository.sha256(file)
                    size = repository.listed_size.get(file, len(content))
                    lfs = {"sha256": sha256, "size": size, "pointerSize": 134}
                    entry |= {"size": size, "blobId": sha256[:40], "lfs": lfs}
                siblings.append(entry)
            commit = repository.listed_commit
            sha = repository.commit if commit == "" else commit
            body = {"id": name, "sha": sha, "siblings": siblings}
            self.answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

        def resolve(self, name: str, file: str) -> None:
            repository = hub.repositories.get(name)
            if repository is None:
                return self.refuse(404, "RepoNotFound")
            if file not in repository.files or file in repository.lacks:
                return self.refuse(404, "EntryNotFound", repository.headers)
            if (
                repository.token
                and self.headers.get("Authorization") != f"Bearer {repository.token}"
            ):
                return self.refuse(403 if "Authorization" in self.headers else 401, "GatedRepo")
            about = {
                "X-Repo-Commit": repository.commit,
                "X-Linked-Etag": f'"{repository.sha256(file)}"',
                "X-Linked-Size": str(len(repository.files[file])),
                **repository.headers,
            }
            if hub.redirects:
                about["Location"] = f"{hub.elsewhere}/store/{name}/{file}"
                return self.answer(302, b"", about)
            if "file" in hub.endless and self.command == "GET":
                return self.send_endlessly(200, about)
            return self.send_file(f"{name}/{file}", about)

        def send_file(self, path: str, about: dict[str, str] | None = None) -> None:
            owner, model, file = path.split("/", 2)
            content = hub.repositories[f"{owner}/{model}"].files[file]
            is_part = hub.ranges and "Range" in self.headers
            begin = int(self.headers["Range"][6:].partition("-")[0]) if is_part else 0
            status = 206 if is_part else 200
            etag = {"ETag": f'"{digest(content)}"'}
            end = len(content)
            if self.command == "GET" and hub.cuts:
                end = begin + hub.cuts.pop(0)
            self.answer(status, content[begin:], {**etag, **(about or {})}, end - begin)

        def send_endlessly(self, status: int, headers: dict[str, str] | None = None) -> None:
            """Send spaces until the client hangs up. Their number is in ``hub.sent``."""
            self.close_connection = True
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            part = b" " * (1 if hub.drip_s else 1 << 16)
            while not hub.stopped and self.command == "GET":
                self.wfile.write(part)
                hub.sent += len(part)
                time.sleep(hub.drip_s)

        def refuse(
            self, status: int, code: str = "", headers: dict[str, str] | None = None
        ) -> None:
            about = {"X-Error-Code": code} if code else {}
            self.answer(status, b"{}", {**about, **(headers or {})})

        def answer(
            self, status: int, body: bytes, headers: dict[str, str], sent: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            self.wfile.write(body[:sent])
            if sent is not None and sent < len(body):
                self.wfile.flush()
                hub.pause.wait()
                self.close_connection = True

    return Answer

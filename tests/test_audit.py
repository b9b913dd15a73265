"""The audit of what we depend on, held against an index of our own."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[1] / "constraints" / "audit.py"
if not FILE.exists():
    pytest.skip("not in a checkout", allow_module_level=True)
spec = importlib.util.spec_from_file_location("audit", FILE)
assert spec and spec.loader
audit: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(audit)

HOLE = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fixed_in": ["9.9"], "summary": "templates break out", "withdrawn": None}


@pytest.fixture
def index() -> Iterator[tuple[str, dict[str, Any]]]:
    """An index that knows of no hole but those in this dict: "name version" -> holes."""
    known: dict[str, Any] = {}

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, name, version, _ = self.path.split("/")
            body = json.dumps({"vulnerabilities": known.get(f"{name} {version}", [])}).encode()
            self.send_response(404 if version == "5" else 200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", known
    server.shutdown()
    server.server_close()
    thread.join()


def test_nothing_known_is_no_trouble(index, capsys):
    assert audit.main(["--index", index[0]]) == 0
    assert "0 known holes" in capsys.readouterr().out


def test_a_hole_in_a_pin_or_in_the_lowest_version_is_told(index, capsys):
    url, known = index
    low = dict(audit.lowest())["jinja2"]
    known[f"jinja2 {low}"] = [HOLE]
    known["pydantic " + dict(audit.pinned())["pydantic"]] = [HOLE]
    assert audit.main(["--index", url]) == 1
    told = capsys.readouterr().out
    assert f"jinja2 {low} (lowest allowed): PYSEC-1 (CVE-1), fixed in 9.9" in told and "(pinned): PYSEC-1" in told


def test_what_was_withdrawn_or_does_not_touch_us_is_left_out(index):
    url, known = index
    low = dict(audit.lowest())["jinja2"]
    known[f"jinja2 {low}"] = [{**HOLE, "withdrawn": "2026-01-01"}, {**HOLE, "id": next(iter(audit.ACCEPTED))}]
    assert audit.main(["--index", url]) == 0


def test_a_version_that_the_index_spells_in_full_is_found(index):
    url, known = index
    known["transformers 5.0"] = [HOLE]
    assert audit.main(["--index", url]) == 1


def test_an_index_that_cannot_be_reached_stops_nobody_and_says_so(capsys):
    assert audit.main(["--index", "http://127.0.0.1:9"]) == 2
    assert "cannot be asked" in capsys.readouterr().err

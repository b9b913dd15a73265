"""What does a caller get when the provider fails in one of the 16 ways of Failover Bench?

Each system is asked in a process of its own, and has a provider of its own (``faults.py``), which
fails in the way that the model's name says. ``scenarios.py`` has the scenarios and the rules of the
verdicts, ``systems.py`` the systems and their settings. The scenarios of a system run side by side,
so that a full run takes little more than two minutes.

LiteLLM needs other versions of packages, so ``--litellm`` names a Python in which it is installed.
Without that option, it is left out.

    python benchmarks/failover.py [--profile full] [--systems python ...] [--only S08 ...]
        [--litellm PYTHON] [--tiny]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx2
from common import ROOT, about, arguments, save
from faults import PROFILES
from scenarios import SCENARIOS, VERDICTS, Scenario, Seen, seen_in, verdict
from systems import SYSTEMS

MEASURES = ("core/rounds.py", "engine", "members/chat_model", "chat", "serve")
"""The parts of the package that decide these figures."""
HERE = Path(__file__).parent


@contextmanager
def provider(profile: str) -> Iterator[str]:
    """The address of a provider in a process of its own."""
    command = [sys.executable, str(HERE / "faults.py"), "--profile", profile]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


def judged(
    name: str, profile: str, only: Sequence[str], python: str, all_ready: Barrier
) -> dict[str, Any]:
    """The verdicts on one system, with what led to them."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}"} if SYSTEMS[name].here else None
    with provider(profile) as url:
        command = [python, str(HERE / "systems.py"), name, url, "--profile", profile]
        with subprocess.Popen(
            [*command, "--only", *only],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as caller:
            assert caller.stdout is not None
            if caller.stdout.readline() != "ready\n":
                all_ready.abort()
            all_ready.wait()
            printed, _ = caller.communicate("go\n")
        found = json.loads(printed.splitlines()[-1])
        log = httpx2.get(f"{url}/log").json()
    system = SYSTEMS[name]
    rows = {
        one.id: _row(one, seen_in(one, found["scenarios"][one.id], log, profile))
        for one in SCENARIOS
        if one.id in found["scenarios"]
    }
    return {
        "label": system.label,
        "settings": system.settings,
        "packages": found["packages"],
        "counts": dict(Counter(row["verdict"] for row in rows.values())),
        "scenarios": rows,
    }


def _row(one: Scenario, seen: Seen) -> dict[str, Any]:
    found, why = verdict(one, seen)
    row = {"title": one.title, "verdict": found, "why": why.partition("\n")[0][:200]}
    row |= {"primary": len(seen.primary), "fallback": len(seen.fallback)}
    if one.sequences:
        recovered = seen.recovered_s
        row["recovered_s"] = None if recovered is None else round(recovered, 1)
    row |= {key: seen.last[key] for key in ("first_s", "s", "model")}
    row["did"] = [f"{attempt['model']}: {attempt['did']}" for attempt in seen.primary][:8]
    return row


def table(systems: dict[str, Any]) -> str:
    lines = []
    for one in SCENARIOS:
        cells = [
            f"{name} {row['verdict']} {row['primary']}p/{row['fallback']}f {row['s']:.1f}s"
            + (f" ({row['why']})" if row["why"] else "")
            for name, system in systems.items()
            for row in [system["scenarios"].get(one.id)]
            if row
        ]
        if cells:
            lines.append(f"{one.id} {one.title}\n    " + "\n    ".join(cells))
    for name, system in systems.items():
        counts = "/".join(str(system["counts"].get(verdict, 0)) for verdict in VERDICTS)
        lines.append(f"{name}: {counts} ({'/'.join(VERDICTS)})")
    return "\n".join(lines)


def main() -> None:
    parser = arguments(__file__, __doc__, tiny={})
    parser.add_argument("--profile", choices=PROFILES)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, metavar="SYSTEM")
    parser.add_argument("--only", nargs="+", default=[], metavar="SCENARIO")
    parser.add_argument("--litellm", type=Path, metavar="PYTHON", help="a Python with LiteLLM")
    given = parser.parse_args()
    profile = given.profile or ("fast" if given.tiny else "full")
    names = given.systems or [
        name for name, system in SYSTEMS.items() if system.here or given.litellm
    ]
    since = time.monotonic()
    all_ready = Barrier(len(names))
    with ThreadPoolExecutor(len(names)) as threads:
        running = {
            name: threads.submit(
                judged,
                name,
                profile,
                given.only,
                sys.executable if SYSTEMS[name].here else str(given.litellm),
                all_ready,
            )
            for name in names
        }
        systems = {name: one.result() for name, one in running.items()}
    given.litellm = bool(given.litellm)  # not its path
    told = about(given) | {"measures": list(MEASURES), "profile": profile}
    told["seconds"] = round(time.monotonic() - since)
    print(table(systems))
    save(given.out, {"about": told, "systems": systems})


if __name__ == "__main__":
    main()

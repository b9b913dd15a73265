"""Fuzzing of everything that reads what others wrote, guided by which lines and branches an input reaches.

    python -m tests.torture.fuzz                      # each target for a minute
    python -m tests.torture.fuzz --minutes 10 bodies  # one of them, for longer

Every target runs in a process of its own under Atheris (``pip install atheris``; without it the inputs are mutated
blindly, and that is said). An input that breaks something stops the target and is kept in ``corpus/NAME/``, where the
usual tests find it from then on; so are the smallest inputs that reached new code.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")
MEMORY = 4 << 30
HANGS_S = 10
SMALL = 200
"""Larger inputs that only reach new code are not kept: the next run finds them again."""
MOST_KEPT = 40
NAMES = ("calls", "places", "bodies", "servers", "traces", "kept")
TOKENS = ['{"', '": ', "[[[[", "}", "null", "1e999", "-0", "\\u", "\\ud800", "\x00", "\xff", "NaN", '"name"', "9" * 40]
TOKENS += ["<tool_call>\n", "\n</tool_call>", '"tool_calls"', '"role"', '"content"', "true", "\u2028", "é", "😀"]


def kept(name: str) -> list[bytes]:
    """The inputs that earlier runs have kept."""
    return [file.read_bytes() for file in sorted((CORPUS / name).glob("*"))]


def mutations(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Wrong versions of an input: cut, doubled, with bytes changed and with what is known to hurt put in."""
    rng = random.Random(hashlib.sha256(data).digest() + bytes([seed]))
    for _ in range(count):
        new = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            at, to = sorted((rng.randint(0, len(new)), rng.randint(0, len(new))))
            match rng.randrange(5):
                case 0:
                    del new[at:to]
                case 1:
                    new[at:at] = new[at:to] * rng.choice((1, 1, 20))
                case 2:
                    new[at:at] = rng.choice(TOKENS).encode("utf-8", "surrogatepass")
                case 3 if new:
                    new[min(at, len(new) - 1)] = rng.randrange(256)
                case 4:
                    new[at:to] = rng.choice(TOKENS).encode("utf-8", "surrogatepass")
        yield bytes(new[:100_000])


def guided(name: str, seconds: int, folder: Path) -> None:
    """In a process of its own: never returns. What reaches new code is in ``folder/found``."""
    import atheris

    with atheris.instrument_imports(include=["langchain_specfuse"]):
        from .targets import SEEDS, TARGETS

    begun, found = folder / "begun", folder / "found"
    begun.mkdir()
    found.mkdir()
    for data in [*SEEDS[name], *kept(name)]:
        (begun / _mark(data)).write_bytes(data)
    (folder / "words").write_text("\n".join(map(_quoted, TOKENS)))
    options = [f"-max_total_time={seconds}", f"-timeout={HANGS_S}", f"-rss_limit_mb={MEMORY >> 20}", "-verbosity=0"]
    options += [f"-artifact_prefix={CORPUS / name}/", f"-dict={folder / 'words'}", "-print_final_stats=1"]
    options += ["-max_len=20000", "-len_control=30", "-seed=1"]
    atheris.Setup([sys.argv[0], *options, str(found), str(begun)], lambda data: _tried(name, TARGETS[name], data))
    atheris.Fuzz()


def _tried(name: str, target: Callable[[bytes], None], data: bytes) -> None:
    """What breaks a target is kept."""
    try:
        target(data)
    except Exception:
        (CORPUS / name / f"crash-{_mark(data)}").write_bytes(data)
        raise


def _mark(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _quoted(token: str) -> str:
    return '"' + "".join(f"\\x{byte:02x}" for byte in token.encode("utf-8", "surrogatepass")) + '"'


def _keep(name: str, found: Path) -> int:
    """The smallest of what was found, until there are enough."""
    files = sorted(found.glob("*"), key=lambda file: file.stat().st_size)
    small = [file.read_bytes() for file in files if file.stat().st_size <= SMALL]
    new = small[: max(0, MOST_KEPT - len(kept(name)))]
    for data in new:
        (CORPUS / name / _mark(data)).write_bytes(data)
    return len(new)


def blind(name: str, seconds: int) -> None:
    """The same without a guide."""
    from .targets import SEEDS, TARGETS

    until, tried, seed = time.monotonic() + seconds, 0, 0
    while time.monotonic() < until:
        seed += 1
        for data in [*SEEDS[name], *kept(name)]:
            for wrong in mutations(data, 20, seed % 256):
                tried += 1
                _tried(name, TARGETS[name], wrong)
    print(f"{tried} inputs, blindly")


def main() -> None:
    parser = argparse.ArgumentParser(description="fuzzing of the parsers")
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    seconds, guide = int(60 * chosen.minutes), importlib.util.find_spec("atheris")
    if chosen.here:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if guide:
            guided(chosen.targets[0], seconds, chosen.here)
        return blind(chosen.targets[0], seconds)
    if not guide:
        print("atheris is not installed (pip install atheris): inputs are mutated blindly", file=sys.stderr)
    broken = [name for name in chosen.targets or NAMES if not _sound(name, chosen.minutes)]
    if broken:
        raise SystemExit(f"broken: {', '.join(broken)}; the inputs are in {CORPUS}")


def _sound(name: str, minutes: float) -> bool:
    """Whether a target held."""
    print(f"== {name}", flush=True)
    (CORPUS / name).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        again = [sys.executable, "-m", "tests.torture.fuzz", "--minutes", str(minutes), "--here", folder, name]
        held = subprocess.run(again).returncode == 0
        print(
            f"{name}: {'held' if held else 'BROKEN'}, {_keep(name, Path(folder, 'found'))} new inputs kept", flush=True
        )
    return held


if __name__ == "__main__":
    main()

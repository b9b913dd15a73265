"""Real engines for tests and measurements: started on this machine with the demo's SmolLM2, and
ended again.

llama-server comes with xllamacpp, unless ``SPECFUSE_LLAMA_SERVER`` names another; vLLM has an
environment of its own, whose Python ``SPECFUSE_VLLM_PYTHON`` names (its pins and ours do not go
together).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from langchain_specfuse import TransformersMember
from langchain_specfuse.demo import GEMMA, SMOLLM2, DemoFile, cache_folder, file_of

MODEL = "smollm2"
READY_S = 600.0
"""vLLM starts in half a minute on idle cores, and in several minutes on busy ones."""
MISSING = {
    "vllm": "no vLLM: name the Python of an environment that has it in SPECFUSE_VLLM_PYTHON",
}
FOUND: dict[str, Callable[[], str | None]] = {
    "llama.cpp": lambda: os.environ.get("SPECFUSE_LLAMA_SERVER") or sys.executable,
    "vllm": lambda: os.environ.get("SPECFUSE_VLLM_PYTHON") or None,
}
OPTIONS = {
    "llama.cpp": "--ctx-size 16384 --parallel 4 --threads 1 --no-webui --jinja",
    "vllm": "--dtype float32 --max-model-len 4096 --max-num-seqs 32 --enforce-eager --block-size "
    "32 "
    "--enable-prompt-tokens-details",
}
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONPATH": "",
}


def folder(weights: DemoFile = SMOLLM2) -> Path:
    """Return these weights as a transformers folder in float32; they are converted once."""
    path = cache_folder() / f"{weights.name}-float32"
    if not (path / "config.json").exists():
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        file = {"gguf_file": file_of(weights).name}
        model = AutoModelForCausalLM.from_pretrained(cache_folder(), dtype=torch.float32, **file)
        # all weights are dequantized now, but transformers still refuses to save them
        model.hf_quantizer = None
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        with tempfile.TemporaryDirectory(dir=cache_folder(), ignore_cleanup_errors=True) as half:
            AutoTokenizer.from_pretrained(cache_folder(), **file).save_pretrained(half)
            model.save_pretrained(half)
            with suppress(OSError):  # another process was faster
                Path(half).rename(path)
    return path


def in_transformers(**options: Any) -> list[TransformersMember]:
    """Return the demo's small models as transformers members, without the demo's arguments."""
    return [
        TransformersMember(folder(demo_file), name=demo_file.name, dtype="float32", **options)
        for demo_file in (SMOLLM2, GEMMA)
    ]


def command(engine: str, port: int) -> list[str]:
    """Return the command that starts this engine, as docs/gpu.md shows it."""
    program = FOUND[engine]()
    assert program is not None, MISSING[engine]
    place = ["--host", "127.0.0.1", "--port", str(port), *OPTIONS[engine].split()]
    if engine == "llama.cpp" and program == sys.executable:
        return [
            program,
            str(Path(__file__).with_name("llama_server.py")),
            str(file_of(SMOLLM2)),
            str(port),
            MODEL,
        ]
    if engine == "llama.cpp":
        return [program, "-m", str(file_of(SMOLLM2)), "--alias", MODEL, *place]
    model = ["--model", str(folder()), "--served-model-name", MODEL]
    return [program, "-m", "vllm.entrypoints.openai.api_server", *model, *place]


class Engine:
    """A running engine that can be killed and started again at the same port."""

    def __init__(self, engine: str, log: Path) -> None:
        self.engine, self.log = engine, log
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.start()

    def start(self) -> None:
        asked, env = command(self.engine, self.port), os.environ | ENVIRONMENT
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                asked, stdout=out, stderr=out, env=env, start_new_session=True
            )
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(
                    f"{self.url.removesuffix('/v1')}/health", timeout=2
                ) as reply:
                    if reply.status == 200:
                        return
            except OSError:
                time.sleep(0.2)
        self.stop()
        raise RuntimeError(
            f"{self.engine} did not start: {self.log.read_text(errors='replace')[-2000:]}"
        )

    def kill(self) -> None:
        """Kill the engine and its child processes immediately."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


@contextmanager
def running(engine: str, log: Path) -> Iterator[Engine]:
    running_engine = Engine(engine, log)
    try:
        yield running_engine
    finally:
        running_engine.stop()

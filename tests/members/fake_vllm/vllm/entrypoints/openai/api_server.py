"""A program that is started as vLLM's server is. It passes requests on to a :class:`.FakeServer` in
the test's process, which has loaded torch already.

Variables tell it what to do:

- ``FAKE_VLLM_BACKENDS``: model -> the port of its FakeServer, as JSON.
- ``FAKE_VLLM_LOADS_S``: how long loading takes, in seconds.
- ``FAKE_VLLM_RECORD``: a file to which it appends what it was started with, as a line of JSON.
- ``FAKE_VLLM_LOG``: a file with the log of a real vLLM that failed to start. It prints the file and
  ends.
"""

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="api_server.py")
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--lora-modules", nargs="*", default=[], type=json.loads)
    parser.add_argument("--enable-lora", action="store_true")
    for flag in ("gpu-memory-utilization", "max-model-len", "max-loras", "max-lora-rank", "seed"):
        parser.add_argument(f"--{flag}")
    parser.add_argument("--download-dir")
    parser.add_argument("--chat-template")
    parser.add_argument("--middleware", action="append")
    for flag in ("kv-cache-memory-bytes", "block-size", "tensor-parallel-size"):
        parser.add_argument(f"--{flag}", type=int)
    for flag in ("disable-uvicorn-access-log", "enable-prompt-tokens-details", "enforce-eager"):
        parser.add_argument(f"--{flag}", action="store_true")
    arguments = parser.parse_args()
    record(arguments, began=time.time())
    if path := os.environ.get("FAKE_VLLM_LOG"):
        print(Path(path).read_text(), end="", flush=True)
        sys.exit(1)
    serve(arguments)


def record(arguments: argparse.Namespace, **more: object) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    signal.signal(signal.SIGTERM, lambda *_: (child.kill(), os._exit(0)))
    names = ("VLLM_", "CUDA_", "OMP_")
    environment = {key: value for key, value in os.environ.items() if key.startswith(names)}
    started = {"pids": [os.getpid(), child.pid], "argv": sys.argv[1:], "environment": environment}
    with open(os.environ["FAKE_VLLM_RECORD"], "a") as file:
        file.write(json.dumps({**vars(arguments), **started, **more}) + "\n")


def serve(arguments: argparse.Namespace) -> None:
    backend = json.loads(os.environ["FAKE_VLLM_BACKENDS"])[arguments.model]
    for module in arguments.lora_modules:
        adapter = {"lora_name": module["name"], "lora_path": module["path"]}
        assert asked(backend, "POST", "/v1/load_lora_adapter", json.dumps(adapter))[0] == 200
    print("loading weights", flush=True)
    time.sleep(float(os.environ.get("FAKE_VLLM_LOADS_S", 0)))
    print("Application startup complete.", flush=True)
    listener = ThreadingHTTPServer((arguments.host, arguments.port), relay(backend))
    listener.daemon_threads = True
    listener.serve_forever()


def asked(backend: int, method: str, path: str, body: str | bytes | None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", backend, timeout=30)
    connection.request(method, path, body)
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def relay(backend: int) -> type[BaseHTTPRequestHandler]:
    class Relay(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
            key = f"Bearer {os.environ['VLLM_API_KEY']}"
            if self.path.startswith("/v1") and self.headers.get("Authorization") != key:
                status, data = 401, b'{"error": {"message": "Unauthorized"}}'
            elif b'"stream":true' in (body or b""):
                return self.pass_on(body)
            else:
                status, data = asked(backend, self.command, self.path, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()

        do_POST = do_GET

        def pass_on(self, body: bytes | None) -> None:
            """Pass a stream on as it arrives."""
            connection = http.client.HTTPConnection("127.0.0.1", backend, timeout=30)
            connection.request(self.command, self.path, body)
            response = connection.getresponse()
            self.send_response(response.status)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while data := response.read1():
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()
            connection.close()

        def log_message(self, *_: object) -> None:
            pass

    return Relay


if __name__ == "__main__":
    main()

"""llama-server from the package xllamacpp: ``python llama_server.py MODEL PORT ALIAS``, on
$OMP_NUM_THREADS threads."""

from __future__ import annotations

import os
import sys
import threading

from xllamacpp import CommonParams, Server

if __name__ == "__main__":
    params = CommonParams()
    params.model.path, params.port, params.model_alias = (
        sys.argv[1],
        int(sys.argv[2]),
        {sys.argv[3]},
    )
    params.hostnames = ["127.0.0.1"]
    params.n_ctx, params.n_parallel, params.use_jinja, params.ui = 16384, 4, True, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(
        os.environ["OMP_NUM_THREADS"]
    )
    server = Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()

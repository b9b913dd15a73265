"""Serve several replicas of an endpoint at one address with Ray Serve, which distributes the
requests.

    pip install "langchain-specfuse[ray,serve]" "ray[serve]"
    python examples/serve_ray.py   # scripted members, no network
"""

import json
import logging
import os
import socket
import urllib.request

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray
from ray import serve

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.serve import app_of


def app():
    """Each replica makes an app of its own, in its own process."""
    members = [
        ScriptedMember("The sky is blue because the air scatters short waves.", name="ann"),
        ScriptedMember("The sky is wide because the air scatters short waves.", name="bob"),
    ]
    return app_of(SpecFuseChatModel(members=members))


@serve.deployment(num_replicas=2, max_ongoing_requests=32)
@serve.ingress(app)
class Endpoint:
    """A replica of the app."""


ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
logging.getLogger("ray.serve").setLevel(logging.ERROR)
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(Endpoint.bind(), route_prefix="/")

body = {"model": "specfuse", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
url, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"content-type": "application/json"}
request = urllib.request.Request(url, json.dumps(body).encode(), headers)
for _ in range(4):
    with urllib.request.urlopen(request) as reply:
        print(json.load(reply)["choices"][0]["message"]["content"])
serve.shutdown()
ray.shutdown()

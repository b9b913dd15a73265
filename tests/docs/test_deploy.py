"""The files of ``examples/deploy`` call the command as it is, and ask paths that the endpoint has.

No container is built here, and no cluster or systemd is asked.
"""

from __future__ import annotations

import json
import re
import shlex

import pytest
import yaml

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.cli import serve
from langchain_specfuse.serve import app_of

from .blocks import ROOT

DEPLOY = ROOT / "examples" / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
DEPLOYMENT, SERVICE = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
POD = DEPLOYMENT["spec"]["template"]["spec"]
UNIT = dict(
    line.split("=", 1)
    for line in (DEPLOY / "langchain-specfuse.service").read_text().splitlines()
    if re.match(r"\w+=", line)
)


def instruction(name: str) -> list[str]:
    """The program and the arguments of an instruction of the Dockerfile."""
    found = re.search(rf"^{name} (\[.*\])$", DOCKERFILE, re.M)
    assert found
    return list(json.loads(found[1]))


COMMANDS = {
    "Dockerfile": instruction("ENTRYPOINT") + instruction("CMD"),
    "kubernetes.yaml": instruction("ENTRYPOINT") + POD["containers"][0]["args"],
    "langchain-specfuse.service": shlex.split(UNIT["ExecStart"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_is_one_that_the_parser_accepts(name):
    program, subcommand, *arguments = COMMANDS[name]
    assert (program.rpartition("/")[2], subcommand) == ("langchain-specfuse", "serve")
    parsed = serve.parser().parse_args(arguments)
    assert parsed.members == ["openai:gpt-4.1-mini", "anthropic:claude-haiku-4-5"]
    assert parsed.api_key_env == "SPECFUSE_KEYS"


def test_probes_ask_paths_that_need_no_key_and_the_port_on_which_the_command_listens():
    container = POD["containers"][0]
    probes = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")]
    app = app_of(SpecFuseChatModel(members=[ScriptedMember("Yes.")]))
    assert probes == ["/health", "/ready"]
    assert {*probes} <= {route.path for route in app.routes}
    port = serve.parser().get_default("port")
    assert container["ports"][0] == {"name": "http", "containerPort": port}
    assert SERVICE["spec"]["ports"][0]["targetPort"] == "http"
    assert f"EXPOSE {port}\n" in DOCKERFILE and f"127.0.0.1:{port}/ready" in DOCKERFILE


def test_answers_under_way_can_end_before_the_process_is_killed():
    grace = serve.parser().get_default("grace")
    pause = int(POD["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] > grace + pause
    assert int(UNIT["TimeoutStopSec"]) > grace


def test_the_container_copies_what_the_package_is_built_from():
    copied = " ".join(re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.M)).split()
    assert copied == ["pyproject.toml", "README.md", "LICENSE", "langchain_specfuse"]
    assert all((ROOT / name).exists() for name in copied)

"""Run models on a Ray cluster. The example starts it on this machine and stops it at the end.

pip install "langchain-specfuse[ray]"
python examples/ray_cluster.py   # scripted members, no network
"""

import os

import ray

from langchain_specfuse import Method, RayMember, ScriptedMember, SpecFuseChatModel

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")

members = [
    RayMember(ScriptedMember("The sky is blue because the air scatters short waves.", name="ann")),
    RayMember(ScriptedMember("The sky is wide because the air scatters short waves.", name="bob")),
]
llm = SpecFuseChatModel(members=members, method=Method(segment_tokens=4))

for chunk in llm.stream("Why is the sky blue?"):
    print(chunk.text, end="|", flush=True)
print()
for member in members:
    print(member.name, "answers from a process of its own:", member.probe().detail)
ray.shutdown()

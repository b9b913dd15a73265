"""A council of three providers behind one endpoint that speaks OpenAI's protocol. Each model
answers alone; the first one reads all answers and writes the final one, which streams.

A provider without a key is replaced by a member that says what its script says.
"""

import os
import threading
import time

import uvicorn
from openai import OpenAI

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.serve import app_of

COUNCIL = {
    "OPENAI_API_KEY": "openai:gpt-4.1-mini",
    "ANTHROPIC_API_KEY": "anthropic:claude-haiku-4-5",
    "GOOGLE_API_KEY": "google_genai:gemini-2.5-flash",
}


def merged(query):
    if "Answer 1:" in query.turns[-1].text:
        return "Take a coat and an umbrella, and buy food on Saturday: shops close on Sunday."
    return "Take a coat: it is cold by the sea."


SCRIPTS = [merged, "Take an umbrella: it rains a lot.", "Buy food early: shops close on Sunday."]

members = [
    name if os.environ.get(key) else ScriptedMember(script, name=name.partition(":")[2])
    for (key, name), script in zip(COUNCIL.items(), SCRIPTS, strict=True)
]
council = SpecFuseChatModel(
    members=members, segment="answer", result="fuse", member_timeout=60, timeout=180
)
app = app_of(council, model="council")

server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
serving = threading.Thread(target=server.run)
serving.start()
while not server.started:
    time.sleep(0.05)
port = server.servers[0].sockets[0].getsockname()[1]

with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
    question = [{"role": "user", "content": "What should I know before a weekend in Bergen?"}]
    for chunk in client.chat.completions.create(model="council", messages=question, stream=True):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()
    panel = chunk.model_extra["specfuse"]["panel"]
    for member, answer in panel["answers"].items():
        print(f"{member}: {answer['tokens']} tokens, {answer['finish']}")
    print("written by", " and ".join(panel["writers"]))

server.should_exit = True
serving.join()

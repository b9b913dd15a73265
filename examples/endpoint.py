"""Serve the chat model at a port, and ask it with OpenAI's client. Both run in this process.

pip install "langchain-specfuse[serve]" openai
python examples/endpoint.py   # scripted members, no network
"""

import threading
import time

import uvicorn
from openai import OpenAI

from langchain_specfuse import Method, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.serve import app_of

members = [
    ScriptedMember("The sky is blue because the air scatters short waves.", name="ann"),
    ScriptedMember("The sky is wide because the air scatters short waves.", name="bob"),
]
app = app_of(SpecFuseChatModel(members=members, method=Method(segment_tokens=4)))

server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
serving = threading.Thread(target=server.run)
serving.start()
while not server.started:
    time.sleep(0.05)
port = server.servers[0].sockets[0].getsockname()[1]

with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
    question = [{"role": "user", "content": "Why is the sky blue?"}]
    for chunk in client.chat.completions.create(model="specfuse", messages=question, stream=True):
        print(chunk.choices[0].delta.content or "", end="|")
    print("\nwritten by", chunk.model_extra["specfuse"]["shares"])

server.should_exit = True
serving.join()

"""A front door: the ensemble behind a port, and OpenAI's own client in front of it. Both live in this one process."""

import threading
import time

import httpx
from openai import OpenAI

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.door import app_of, port

members = [
    ScriptedMember("The sky is blue because the air scatters short waves.", name="ann"),
    ScriptedMember("The sky is wide because the air scatters short waves.", name="bob"),
]
app = app_of(SpecFuseChatModel(members=members, segment_tokens=4))

with port.opened("127.0.0.1", 0) as here:
    server = port.server_of(app, port.Certificate(), grace_s=5)
    serving = threading.Thread(target=server.run, args=([here],))
    serving.start()
    url = f"http://127.0.0.1:{here.getsockname()[1]}"
    while httpx.get(f"{url}/ready").status_code != 200:
        time.sleep(0.05)

    with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        question = [{"role": "user", "content": "Why is the sky blue?"}]
        for chunk in client.chat.completions.create(model="specfuse", messages=question, stream=True):
            print(chunk.choices[0].delta.content or "", end="|")
        print("\nwritten by", chunk.model_extra["specfuse"]["shares"])

    server.should_exit = True
    serving.join()

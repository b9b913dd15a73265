"""Several models write a function each. The answer is the function whose results most of them
agree on.

``result`` runs the code of every answer with a few inputs. Run code of models in a sandbox only; to
keep this example short, it is a subprocess with a time limit.

    pip install langchain-specfuse
    python examples/code_that_runs.py   # scripted members, no network
"""

from __future__ import annotations

import re
import subprocess
import sys

from langchain_specfuse import Method, ScriptedMember, SpecFuseCallbackHandler, SpecFuseChatModel

INPUTS = (0, 1, 7)


def returned(answer: str) -> str | None:
    """What the answer's function ``double`` returns for the inputs; None if it does not run."""
    found = re.search(r"```python\n(.*?)```", answer, re.S)
    if not found:
        return None
    program = f"{found[1]}\nprint([double(n) for n in {INPUTS}])"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=10
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() or None


def written(body: str) -> str:
    return f"```python\ndef double(n):\n    return {body}\n```"


if __name__ == "__main__":
    answers = {"ann": "n ** 2", "bob": "n + n", "cyd": "n *", "dan": "2 * n"}
    members = [ScriptedMember(written(body), name=name) for name, body in answers.items()]
    llm = SpecFuseChatModel(members=members, method=Method(segment="answer", result=returned))
    authors = SpecFuseCallbackHandler(
        on_round=lambda event: print("agreed by", " and ".join(event.authors))
    )
    print(llm.invoke("Write a Python function double(n).", {"callbacks": [authors]}).text)

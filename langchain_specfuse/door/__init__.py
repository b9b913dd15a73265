"""The front door: an ensemble as an HTTP endpoint that speaks as OpenAI's chat completions do.

    from langchain_specfuse.door import Limits, app_of

    app = app_of(llm, limits=Limits(at_once=16))  # a FastAPI app: serve it, or mount it in yours

Knows HTTP and OpenAI's JSON; how an answer comes about is the chat model's, so both say the same.
"""

from .app import app_of
from .limits import Limits

__all__ = ["Limits", "app_of"]

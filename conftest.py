"""What cannot be imported here is not looked through for examples: decision models need langchain-core 1.8."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("langchain_core.decisions") else ["langchain_specfuse/decisions.py"]

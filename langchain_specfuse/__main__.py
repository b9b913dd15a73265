"""``python -m langchain_specfuse`` is the command ``langchain-specfuse``."""

from .cli.main import command

if __name__ == "__main__":
    command()

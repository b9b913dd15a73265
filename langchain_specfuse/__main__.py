"""The command ``langchain-specfuse``, also as ``python -m langchain_specfuse``."""

import sys


def command() -> None:
    """Import the command, which takes a second, and run it: Ctrl-C always ends it in the same
    way."""
    try:
        from .cli.main import command as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    command()

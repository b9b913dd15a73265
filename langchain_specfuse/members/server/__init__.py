"""Models on servers, over HTTP."""

from .member import ServerMember

__all__ = ["ServerMember"]

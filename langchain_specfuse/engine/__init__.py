"""Runs the loop: a desk (inbox and thread) per device, and two ways to pump it. Knows no backend and no LangChain."""

from .drive import adrive, drive
from .ensemble import Ensemble

__all__ = ["Ensemble", "adrive", "drive"]

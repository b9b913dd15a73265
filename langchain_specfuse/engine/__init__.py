"""Runs the loop: a worker (queue and thread) per device, and two drivers, sync and async."""

from .drive import adrive, drive
from .ensemble import Ensemble

__all__ = ["Ensemble", "adrive", "drive"]

"""Runs the loop: an ensemble loads its members, a driver runs one answer, a worker one device."""

from .drive import adrive, drive
from .ensemble import Ensemble

__all__ = ["Ensemble", "adrive", "drive"]

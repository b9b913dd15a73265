"""The normal form of a text, for checks that find every spelling of it."""

from ..core.normal import normal as normal

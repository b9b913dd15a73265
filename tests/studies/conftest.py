"""The studies are scripts, which import each other and ``benchmarks/common.py`` by name."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "studies"), str(ROOT / "benchmarks")]

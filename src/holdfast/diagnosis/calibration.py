"""How often causes were right, counted; written by `benchmarks/population.py --calibrate` from its even seeds."""

from __future__ import annotations

FIRST: tuple[tuple[float, int, int], ...] = ()  # at least this score: how many were right, of how many
OTHER: tuple[tuple[float, int, int], ...] = ()
CAUSES: dict[str, tuple[int, int]] = {}

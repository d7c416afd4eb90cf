"""`ranks-differ`: one rank is set up differently from the others: its torch, its seed, the order of its data, its clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from holdfast.detectors.finding import Finding

_CLOCK_SECONDS = 60.0
_SETUP = {"torch": "torch version", "cuda": "CUDA version", "python": "Python version", "sampler": "order of the data"}
_SERIOUS = ("torch", "cuda", "sampler")  # the others may be intended


def ranks_differ(setups: Mapping[int, Mapping[str, Any]], *, step: int) -> Iterator[Finding]:
    """Compare what ranks say of themselves; `clock` is by how many seconds a rank's clock is ahead of the file system's."""
    for name, words in _SETUP.items():
        for rank, value, usual in _odd({rank: setup[name] for rank, setup in setups.items() if name in setup}, least=1):
            yield _finding(words, rank, value, usual, step, severity="warning" if name in _SERIOUS else "info")
    seeds = {rank: setup["seed"] for rank, setup in setups.items() if isinstance(setup.get("seed"), int)}
    by_rank = {rank: seed - rank for rank, seed in seeds.items()}  # scripts that seed with their rank
    odd, odd_by_rank = list(_odd(seeds, least=2)), list(_odd(by_rank, least=2))
    if odd and (odd_by_rank or len(set(by_rank.values())) > 1):
        yield from (_finding("random seed", rank, value, usual, step) for rank, value, usual in odd)
    elif odd_by_rank and len(set(seeds.values())) > 1:
        for rank, _, usual in odd_by_rank:
            yield _finding("random seed", rank, seeds[rank], usual + rank, step)
    clocks = {rank: float(setup["clock"]) for rank, setup in setups.items() if "clock" in setup}
    middle = median(clocks.values()) if clocks else 0.0
    for rank, ahead in clocks.items():
        if abs(ahead - middle) > _CLOCK_SECONDS:
            yield _finding("clock", rank, f"{abs(ahead - middle):.0f} s {'ahead' if ahead > middle else 'behind'}", "0 s", step)


def _odd(values: Mapping[int, Any], *, least: int) -> Iterator[tuple[int, Any, Any]]:
    """Ranks with another value than most; `least` must have that of most. Of two ranks the first counts as most."""
    keys = {rank: repr(value) for rank, value in sorted(values.items())}
    counts = Counter(keys.values()).most_common()
    if len(counts) < 2 or counts[0][1] < max(least, len(keys) / 2):
        return
    usual = next(values[rank] for rank in sorted(keys) if keys[rank] == counts[0][0])
    for rank, key in keys.items():
        if key != counts[0][0]:
            yield rank, values[rank], usual


def _finding(what: str, rank: int, value: Any, usual: Any, step: int, severity: str = "info") -> Finding:
    evidence = {"what": what, "rank": rank, "value": _shown(value), "others": _shown(usual)}
    return Finding("ranks-differ", step=step, severity=severity, evidence=evidence)


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        kind, seed, shuffle, replicas = value
        return f"{kind}(seed={seed}, shuffle={shuffle}, num_replicas={replicas})"
    return str(value)

"""`rank-divergence`: ranks that are to hold the same weights do not."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.detectors.finding import Finding

_EQUAL = 1e-6  # of a norm: sums of the same numbers in another order


class RankDivergence:
    """Takes in the norms of each rank, step by step, and compares those of the same step once all ranks have given them.

    Ranks that share their gradients have the same gradient norm; then their weights must have the same norm too. Shards differ
    in both, and trainings that have nothing to do with each other as well: of these nothing is said.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._by_step: dict[int, dict[int, tuple[float, float]]] = {}
        self._agreed = False
        self._reported = False

    def add(self, rank: int, step: int, grad_norm: float, weight_norm: float) -> Finding | None:
        """The norms of one rank at one step."""
        by_rank = self._by_step.setdefault(step, {})
        by_rank[rank] = (grad_norm, weight_norm)
        if len(by_rank) < self._ranks or self._reported:
            return None
        for old in [one for one in self._by_step if one <= step]:
            del self._by_step[old]
        return self._compared(step, by_rank)

    def _compared(self, step: int, by_rank: Mapping[int, tuple[float, float]]) -> Finding | None:
        gradients, weights = zip(*(by_rank[rank] for rank in sorted(by_rank)), strict=True)
        if _alike(weights):
            self._agreed = True
            return None
        if not (self._agreed or _alike(gradients)):
            return None
        self._reported = True
        norms = {f"rank_{rank}": weight for rank, (_, weight) in sorted(by_rank.items())}
        shared = _alike(gradients)
        evidence: dict[str, object] = {
            "onset": step if self._agreed else 0,
            "gradients_shared": shared,
            **dict(list(norms.items())[:8]),
        }
        if (odd := _odd_one(by_rank)) is not None:
            evidence["rank"] = odd
        return Finding("rank-divergence", step=step, severity="critical", evidence=evidence)


def _odd_one(by_rank: Mapping[int, tuple[float, float]]) -> int | None:
    """The rank whose weights differ while all others agree; None where there is no such rank."""
    for rank in by_rank if len(by_rank) > 2 else ():
        if _alike(tuple(weight for other, (_, weight) in by_rank.items() if other != rank)):
            return rank
    return None


def _alike(values: tuple[float, ...]) -> bool:
    return max(values) - min(values) <= _EQUAL * max(abs(value) for value in values)

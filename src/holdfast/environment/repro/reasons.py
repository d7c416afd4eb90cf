"""Why two runs differ: hold still one thing at a time, in a pair of its own, until they are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from holdfast.environment.repro.compare import Difference
from holdfast.environment.repro.pair import Pair, RepeatedTraining, run_pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Something that was held still, what it means that it helped, and what to do."""

    steady: str
    code: str
    because: str
    fix: str


REASONS = {
    "hash": Reason(
        steady="hash",
        code="order-of-a-set",
        because="the order of a set or of string hashes: fixing Python's hash seed removes the difference",
        fix="sort before you iterate (sorted(names)), or start with PYTHONHASHSEED=0",
    ),
    "seed": Reason(
        steady="seed",
        code="not-seeded",
        because="an unseeded random generator: seeding all generators at the start removes the difference",
        fix="call holdfast.seed(42) before the model and the loaders are made",
    ),
    "workers": Reason(
        steady="workers",
        code="unseeded-worker",
        because="loader workers: without workers there is no difference",
        fix="give the loader generator= and a worker_init_fn that seeds what your data set draws from",
    ),
    "time": Reason(
        steady="time",
        code="time-in-the-data",
        because="the clock: with a frozen clock there is no difference",
        fix="remove the time from the data and the seed",
    ),
    "kernels": Reason(
        steady="kernels",
        code="non-deterministic-kernel",
        because="kernels or threads that sum in varying order: deterministic kernels remove the difference",
        fix="call holdfast.seed(42), or torch.use_deterministic_algorithms(True)",
    ),
}
_COMPUTED = ("output", "loss", "gradient", "updated")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproResult:
    """The first difference, the reasons that were shown, and what is left when all of them are held still."""

    pair: Pair
    reasons: tuple[Reason, ...] = ()
    left: Difference | None = None


def find_reasons(request: RepeatedTraining, pair: Pair, tell: Callable[[str], None] = lambda _text: None) -> ReproResult:
    """Keep each thing that moves the first difference to a later place, until there is none."""
    steady: tuple[str, ...] = ()
    shown: list[Reason] = []
    left = pair.difference
    for name in _order(pair.difference):
        if left is None:
            break
        tell(f"again, with fixed: {', '.join((*steady, name))}")
        again = _steadied(request, (*steady, name))
        if again is None or again.place > left.place:
            steady, left = (*steady, name), again
            shown.append(REASONS[name])
    return ReproResult(pair=pair, reasons=tuple(shown), left=left)


def _steadied(request: RepeatedTraining, steady: tuple[str, ...]) -> Difference | None:
    """The difference that is left; two runs may be equal by chance, so that is looked at twice."""
    first = run_pair(request, steady).difference
    return first if first is not None else run_pair(request, steady).difference


def _order(difference: Difference | None) -> Iterator[str]:
    """The likeliest first: what computes differs by kernels, what is drawn by seeds."""
    if difference is None:
        return
    likely = ["seed", "hash", "workers", "time"]
    if difference.same_random and difference.stage == "batch":
        likely = ["hash", "time", "workers", "seed"]
    first = ["kernels"] if difference.stage in _COMPUTED and difference.same_random is not False else []
    yield from first
    yield from likely
    if not first:
        yield "kernels"

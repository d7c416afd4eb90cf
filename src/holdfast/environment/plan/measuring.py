"""Which batches to measure: the script's own, then twice as many, until samples and not the model rule the peak."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.environment.plan.fit import Line, Point, fit, is_bent
from holdfast.environment.plan.trial import Measured, MeasuredTraining, measure
from holdfast.errors import UsageError

_POINTS, _MOST_POINTS, _ON_CPU = 3, 6, 4  # resident memory is never quite on a line, and large batches take long there
_SAFE_SHARE = 0.6  # of the card: larger batches are predicted, not tried
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that was measured of a training."""

    line: Line
    lines: Mapping[str, Line]  # by precision: "as written", "bf16"
    points: tuple[Point, ...]
    row: Mapping[str, Any]  # the last step of the largest batch
    own_batch: int  # the script's own
    activations: Mapping[str, int] = field(default_factory=dict)  # of a step of the smallest batch
    activations_batch: int = 1
    overhead: float = 1.0  # reserved by the allocator for each byte in use
    context: int = 0  # bytes of the card that torch's allocator does not know of
    worker: int = 0  # bytes that a loader worker holds alone
    batch_bytes: float = 0.0  # of a sample, as the loader hands it out
    dataset_size: int | None = None  # samples in it; None if it has no length

    @property
    def on_gpu(self) -> bool:
        """Whether it was measured on a GPU."""
        return "total" in self.row


def measure_training(request: MeasuredTraining, tell: Tell) -> Facts:
    """Measure it at several batches, in both precisions, once with what is kept for backward, once with a worker."""
    tell("measuring a few steps at the script's batch size")
    first = _first(request, tell)
    points, last = _points(request, first, tell, "")
    half = _in_bf16(request, first, tell)
    tell("measuring activations and a loader worker")
    kept = measure(request, batch=first.batch, activations=True, workers=1)
    line = fit(points)
    return Facts(
        line=line,
        lines={"as written": line, **({"bf16": fit(half)} if len(half) > 1 else {})},
        points=tuple(points),
        row=last.row,
        own_batch=int(first.row["own_batch"] or first.batch),
        activations=kept.row["activations"] if kept is not None else {},
        activations_batch=kept.batch if kept is not None else 1,
        overhead=max(1.0, last.reserved / last.peak) if last.reserved else 1.0,
        context=max(0, int(last.row.get("used", 0)) - int(last.row.get("reserved_now", 0))),
        worker=max(kept.row["workers"], default=0) if kept is not None else 0,
        batch_bytes=last.row["batch_bytes"] / max(last.batch, 1),
        dataset_size=last.row["dataset_size"],
    )


def _in_bf16(request: MeasuredTraining, first: Measured, tell: Tell) -> list[Point]:
    """The same in bf16, on a GPU: many CPUs only imitate it, a hundred times slower."""
    if "total" not in first.row:
        return []
    tell("measuring in bf16")
    begun = measure(request, batch=first.batch, precision="bf16")
    return _points(request, begun, tell, "bf16", quiet=True)[0] if begun is not None else []


def _first(request: MeasuredTraining, tell: Tell) -> Measured:
    """The script's own batch, or a smaller one that fits."""
    measured = measure(request)
    batch = 64
    while measured is None and batch:
        tell(f"out of memory; trying batch {batch}")
        measured = measure(request, batch=batch)
        batch //= 4
    if measured is None:
        raise UsageError("a single sample does not fit.", fix="a smaller model or image, bf16, or a GPU with more memory")
    if not measured.batch:
        raise UsageError(
            "the batches do not come from a DataLoader, so their size cannot be changed.",
            fix="write a function that returns a model and one batch, and name it: holdfast plan train:make",
        )
    return measured


def _points(
    request: MeasuredTraining, first: Measured, tell: Tell, precision: str, *, quiet: bool = False
) -> tuple[list[Point], Measured]:
    """Twice as many each time, until the peak grows on a line, or the card would be more than half full."""
    points, last = [Point(batch=first.batch, peak=first.peak)], first
    most = _MOST_POINTS if "total" in first.row else _ON_CPU
    while len(points) < most and (len(points) < _POINTS or is_bent(points) or _flat(points)):
        batch = min(2 * points[-1].batch, last.row["dataset_size"] or 2 * points[-1].batch)
        if batch == points[-1].batch:
            break
        if not quiet:
            tell(f"measuring batch {batch}")
        total = last.row.get("total")
        if total and len(points) > 1 and fit(points).peak(batch) > _SAFE_SHARE * total:
            break
        try:
            measured = measure(request, batch=batch, precision=precision)
        except UsageError:  # too few steps are left with so large a batch
            break
        if measured is None:  # out of memory
            break
        last = measured
        if measured.batch <= points[-1].batch:
            break
        points.append(Point(batch=measured.batch, peak=measured.peak))
    if len(points) == 1 and first.batch > 1:
        smaller = measure(request, batch=first.batch // 2, precision=precision)
        if smaller is not None and smaller.batch == first.batch:
            raise UsageError(
                "the DataLoader ignores batch_size (a batch_sampler?): its batches have one size.",
                fix="write a function that returns a model and one batch, and name it: holdfast plan train:make",
            )
        if smaller is not None:
            points.insert(0, Point(batch=smaller.batch, peak=smaller.peak))
    return points, last


def _flat(points: list[Point]) -> bool:
    """Whether samples add so little that the model still rules the peak."""
    return points[-1].peak < 1.2 * points[0].peak

"""What a run recorded as metrics by name, as trackers take them: steps thinned, evaluations whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_DENSE = 1000  # every step up to twice this, then every second, third, …: 8,500 of a million
STEPS = {
    "loss": "train/loss",
    "lr": "train/lr",
    "grad_norm": "train/grad_norm",
    "weight_norm": "train/weight_norm",
    "update_ratio": "train/update_ratio",
    "epoch": "train/epoch",
    "step_seconds": "time/step_seconds",
    "data_seconds": "time/data_seconds",
    "host_rss": "memory/host_bytes",
    "gpu_allocated": "memory/gpu_bytes",
}


@dataclass(frozen=True, slots=True)
class Row:
    """Metrics of one step, by name."""

    step: int
    time: float
    values: dict[str, float]


def of_steps(rows: dict[str, Any], kept: dict[str, list[Any]], prefix: str) -> list[Row]:
    """Rows of `steps`, thinned for each metric; `kept` is its last step that was sent, and whether the value was finite."""
    import numpy as np

    from holdfast.signals.view import measured

    chosen: dict[int, dict[str, float]] = {}
    for column, name in STEPS.items():
        at = np.flatnonzero(measured(rows[column]))
        if not len(at):
            continue
        steps, values = rows["step"][at], rows[column][at].astype(np.float64)
        last, was_finite = kept.get(name, (-1, True))
        picked = set(_thinned(np.maximum.accumulate(steps), last))
        if was_finite and not np.isfinite(values).all():
            picked.add(int(np.argmin(np.isfinite(values))))  # the first non-finite value is always sent
        for number in picked:
            chosen.setdefault(int(at[number]), {})[prefix + name] = float(values[number])
        if picked:
            end = max(picked)
            kept[name] = [max(last, int(steps[end])), bool(np.isfinite(values[end]))]
    return [Row(int(rows["step"][at]), float(rows["time"][at]), values) for at, values in sorted(chosen.items())]


def _thinned(steps: Any, last: int) -> Iterator[int]:
    """Which of the rising steps are sent after `last`: further apart the later they are."""
    import numpy as np

    while (at := int(np.searchsorted(steps, last + max(1, last // _DENSE)))) < len(steps):
        yield at
        last = int(steps[at])


def of_evaluations(rows: dict[str, Any], prefix: str) -> list[Row]:
    """Metrics of evaluations and of `run.log`; the loss of the training is that of the steps."""
    together: dict[tuple[int, float], Row] = {}
    columns = [rows[column] for column in ("step", "time", "split", "name", "value")]
    for step, when, split, name, value in zip(*columns, strict=True):
        if (split, name) != ("train", "loss"):
            row = together.setdefault((int(step), float(when)), Row(int(step), float(when), {}))
            own = str(name).removeprefix(f"{split}_").removeprefix(f"{split}/")
            row.values[f"{prefix}{split}/{own}"] = float(value)
    return list(together.values())

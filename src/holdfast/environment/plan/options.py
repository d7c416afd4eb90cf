"""What fits and what each lever saves, from what was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.environment.plan.measuring import Facts

GIB = 1 << 30
CARDS = (8, 12, 24, 40, 80, 96, 141)  # GB, as cards are sold
_USABLE = 0.95  # of what is left: fragments, a slightly larger batch of another shape
_CONTEXT = GIB // 2  # what CUDA itself takes, where it was not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """The largest batch on a card in one precision, and how the wanted batch is made of it."""

    card: str
    precision: str
    batch: int
    accumulate: int | None

    def as_row(self) -> dict[str, Any]:
        """For `--json`."""
        return {"card": self.card, "precision": self.precision, "batch": self.batch, "accumulate": self.accumulate}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """Something that saves memory, and the peak that is left at the script's own batch."""

    name: str
    peak: float
    saves: float
    how: str

    def as_row(self) -> dict[str, Any]:
        """For `--json`."""
        return {"lever": self.name, "peak": round(self.peak), "saves": round(self.saves), "how": self.how}


def usable(facts: Facts, total: float) -> float:
    """Bytes of a card that tensors can have."""
    context = facts.context or _CONTEXT
    return (total - context) * _USABLE / facts.overhead


def what_fits(facts: Facts, effective: int | None) -> Iterator[Fits]:
    """For this card first, then for the usual ones."""
    cards: list[tuple[str, float]] = [(f"{size} GB", size * GIB * 0.97) for size in CARDS]
    if facts.on_gpu:
        cards.insert(0, (f"this GPU ({facts.row['total'] / GIB:.0f} GB)", float(facts.row["total"])))
    for name, total in cards:
        for precision, line in facts.lines.items():
            batch = rounded_down(min(line.largest(usable(facts, total)), facts.dataset_size or 1 << 30), facts.dataset_size)
            yield Fits(card=name, precision=precision, batch=batch, accumulate=_accumulate(batch, effective))


def rounded_down(batch: int, exact: int | None = None) -> int:
    """Two digits that matter: more are not known, and it must still fit. `exact` stays as it is."""
    unit = int("1" + "0" * max(0, len(str(batch)) - 2))
    return batch if batch == exact else batch // unit * unit


def _accumulate(batch: int, effective: int | None) -> int | None:
    """How many batches make the wanted one."""
    if not effective or not batch:
        return None
    return -(-effective // min(batch, effective))


def levers(facts: Facts) -> list[Lever]:
    """What each would save at the script's own batch, the most first."""
    batch = facts.own_batch
    now = facts.line.peak(batch)
    useful = [lever for lever in _each(facts, batch, now) if lever.saves > 0.005 * now]
    return sorted(useful, key=lambda lever: -lever.saves)


def _each(facts: Facts, batch: int, now: float) -> Iterator[Lever]:
    def lever(name: str, peak: float, how: str) -> Lever:
        return Lever(name=name, peak=peak, saves=now - peak, how=how)

    if "bf16" in facts.lines:
        yield lever("bf16 autocast", facts.lines["bf16"].peak(batch), "measured")
    if batch > 1:
        yield lever("half the batch, accumulate 2", facts.line.peak(batch // 2), "predicted")
    kept = facts.activations
    if kept.get("blocks", 0) > 1:
        left = kept["block_inputs"] + kept["largest_block"]
        saved = max(0, kept["in_blocks"] - left) / max(facts.activations_batch, 1) * batch
        yield lever("activation checkpointing", max(now - saved, facts.line.floor), f"estimated from {kept['blocks']} blocks")
    if len(facts.row["shape"]) >= 3:
        yield lever("images at 3/4 size", facts.line.fixed + 0.5625 * facts.line.per_sample * batch, "estimated from pixels")
    state = int(facts.row["optimizer"])
    if state > facts.row["parameters"]:
        yield lever("8-bit optimizer", now - 0.75 * state, "estimated: state at a quarter")


def host_need(facts: Facts, workers: int, prefetch: int, batch: int) -> float:
    """Bytes on the host: the process, each worker, and the batches that wait."""
    return float(facts.row["host"]) + workers * (facts.worker + prefetch * batch * facts.batch_bytes)

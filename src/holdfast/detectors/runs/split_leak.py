"""`split-leak`: samples that are held out were learned from."""

from __future__ import annotations

from holdfast.detectors.finding import Finding
from holdfast.detectors.runs.fields import fields_of, label_field, of_split
from holdfast.signals.run_view import InputSample, RunView


def split_leak(
    run: RunView, *, least: int = 4, share: float = 0.3, alone: float = 0.2, twins: float = 0.01, evaluations: int = 2
) -> Finding | None:
    """Of the held-out samples that were looked at, as many were seen in training as if `share` of all had been.

    Only some batches are looked at, so what is known of the training data is taken into account: where its size is not known, by
    how many of its own samples come again in later passes; in a first pass, `alone` of the samples must have been seen. Every
    data set that is evaluated must show it: many scripts evaluate on a part of the training data beside what they hold out. Data
    in which samples repeat by themselves (`twins`) says nothing.
    """
    learned, held = fields_of(of_split(run, "train")), fields_of(of_split(run, "val"))
    name = next((one for one in learned if one != label_field(learned) and learned[one][0].known >= 0), None)
    if name is None or len({one.step for one in held.get(name, ())}) < evaluations or _repeat(learned[name]) > twins:
        return None
    if _leaked(_first_pass(learned[name]), learned[name], alone) >= share:  # short texts come again within one pass
        return None
    by_source: dict[int, list[InputSample]] = {}
    for one in held[name]:
        by_source.setdefault(one.source, []).append(one)
    parts = [_leaked(rows, learned[name], alone) for rows in by_source.values()]
    num_seen, looked_at = sum(one.known for one in held[name]), sum(one.samples for one in held[name])
    if num_seen < least or min(parts) < share:
        return None
    evidence = {
        "onset": 0,
        "field": name,
        "seen_in_training": num_seen,
        "samples": looked_at,
        "fraction": min(1.0, min(parts)),
        "same_samples": True,
    }
    return Finding("split-leak", step=run.step, evidence=evidence)


def _repeat(rows: list[InputSample]) -> float:
    """The share of samples that are there twice in one batch."""
    return 1.0 - sum(row.distinct for row in rows) / max(1, sum(row.samples for row in rows))


def _first_pass(rows: list[InputSample]) -> list[InputSample]:
    return rows[: next((number for number, row in enumerate(rows) if number and row.repeats >= 0), len(rows))]


def _leaked(rows: list[InputSample], learned: list[InputSample], alone: float) -> float:
    """The share of one data set that was learned from, as far as the samples tell; at most 1."""
    fraction_seen = sum(row.known for row in rows) / max(1, sum(row.samples for row in rows))
    could = [row.known_share for row in rows if row.known_share == row.known_share]
    if not could:  # training samples that were seen before tell how many are remembered
        nearest = [_nearest(learned, row.step) for row in rows]
        could = [near.known / near.samples for near in nearest if near.known > 0]
    if not could:
        return float(fraction_seen >= alone)
    return fraction_seen / max(sum(could) / len(could), 1e-9)


def _nearest(rows: list[InputSample], step: int) -> InputSample:
    return min(rows, key=lambda row: abs(row.step - step))

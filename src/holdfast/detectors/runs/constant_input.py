"""`constant-predictions`: the first layer sees the same input every time, so all answers are the same."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.runs.fields import fields_of, label_field, of_split
from holdfast.detectors.runs.layers import layers_of
from holdfast.signals.run_view import RunView
from holdfast.signals.view import Floats


def constant_input(run: RunView, *, samples: int = 3, close: float = 1e-4, moves: float = 0.02) -> Finding | None:
    """The gradient of the first weights is that of their bias times one and the same input: their ratio never changes.

    With inputs that differ it moves by per cents from batch to batch. The bias's own gradient must move: where nothing
    changes at all (the same batch again and again, no update), the ratio says nothing.
    """
    layer = next((one for one in layers_of(run, samples=samples) if {"weight", "bias"} <= one.parameters.keys()), None)
    if layer is None:
        return None
    weight, bias = layer.parameters["weight"], layer.parameters["bias"]
    if list(weight.steps) != list(bias.steps) or bias.norms().min() <= 0.0 or _spread(bias.norms()) < moves:
        return None
    size, top = weight.norms() / bias.norms(), np.array(weight.grad_max) / np.array(bias.grad_max)
    if _spread(size) > close or _spread(top) > close:
        return None
    evidence = {"onset": 0, "layer": layer.name, "input_norm": float(np.median(size)), "same_input": True}
    return Finding("constant-predictions", step=run.step, evidence=evidence)


def constant_batches(run: RunView, *, batches: int = 3, samples: int = 4) -> Finding | None:
    """Every batch that was looked at holds one and the same sample, in all fields but the labels'."""
    learned = fields_of(of_split(run, "train"))
    label = label_field(learned)  # a batch may be one tensor, without a name and without labels
    targets = (label or "").rpartition(".")[0]  # several of them, in a tuple of their own
    inputs = [rows for name, rows in learned.items() if name != label and not (targets and name.startswith(f"{targets}."))]
    if not inputs or min(map(len, inputs)) < batches or any(row.samples < samples for rows in inputs for row in rows):
        return None
    if any(row.distinct > 1 or row.mean != rows[0].mean or row.known < 0 for rows in inputs for row in rows):
        return None
    evidence = {"onset": 0, "field": inputs[0][0].field, "input_mean": inputs[0][0].mean, "same_input": True}
    return Finding("constant-predictions", step=run.step, evidence=evidence)


def _spread(values: Floats) -> float:
    top = float(values.max())
    return float(np.ptp(values)) / top if top > 0.0 else 0.0

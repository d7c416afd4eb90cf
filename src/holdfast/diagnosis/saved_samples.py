"""Samples of the batches that were saved because their update was bad: pictures or values, the bad ones first.

`python -m holdfast.diagnosis.saved_samples FOLDER` prints those of a run as JSON: torch is loaded in a process of its own.
"""

from __future__ import annotations

import base64
import io
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.signals.run_folder import RunFolder

_SAMPLES, _VALUES, _BATCHES = 12, 8, 6
_PIXELS = 96
Array = npt.NDArray[Any]


def described(run: RunFolder) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The saved batches of a run, newest first: the file, and what is beside it in words."""
    found = sorted((path for recording in run.recordings() for path in recording.path.glob("batches/step-*.json")), reverse=True)
    for path in found[:_BATCHES]:
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(facts, dict):
            yield path.with_suffix(".pt"), facts


def saved_samples(run: RunFolder) -> list[dict[str, Any]]:
    """Each saved batch: its step, its data set, why it was saved, and samples of it."""
    names = ("step", "dataset", "input", "fields", "bad_samples", "not_saved")
    return [{**{name: facts.get(name) for name in names}, "samples": _samples(path, facts)} for path, facts in described(run)]


def _samples(path: Path, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Pictures or values of a batch's samples; none of a batch that only running code could load."""
    import torch

    from holdfast.inside.observers.batch_contents import leaves

    try:
        batches = torch.load(path, weights_only=True, map_location="cpu", mmap=True)["batches"]
        fields = [(name, value.float().numpy() if value.is_floating_point() else value.numpy())
                  for name, value in leaves(batches[0]["batch"]) if isinstance(value, torch.Tensor) and value.dim()]  # fmt: skip
    except Exception:  # noqa: BLE001 - of classes of the script, damaged, or being written
        return []
    size = max((len(values) for _, values in fields), default=0)
    fields = [(name, values) for name, values in fields if len(values) == size]
    indices = (facts.get("dataset_indices") or [None])[0] or list(range(size))
    bad = [place for place in range(size) if any(_is_bad(values[place]) for _, values in fields)]
    chosen = [*bad, *(place for place in range(size) if place not in set(bad))][:_SAMPLES]
    return [
        {
            "index": indices[place] if place < len(indices) else place,
            "bad": place in bad,
            "fields": {name or "batch": _shown(values[place]) for name, values in fields},
        }
        for place in chosen
    ]


def _is_bad(values: Array) -> bool:
    return values.dtype.kind == "f" and not bool(np.isfinite(values).all())


def _shown(values: Array) -> dict[str, Any]:
    """A picture where it looks like one; else the first values."""
    pixels = _pixels(values)
    if pixels is not None:
        return {"picture": _png(pixels)}
    first = np.atleast_1d(values).ravel()[:_VALUES].tolist()
    numbers = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in first]
    return {"values": numbers, "shape": list(values.shape)}


def _pixels(values: Array) -> Array | None:
    """Height x width x 1 or 3 channels; None for what is no picture."""
    if values.ndim == 2 and min(values.shape) >= 8:
        return np.asarray(values[:, :, None])
    if values.ndim == 3 and values.shape[0] in (1, 3) and min(values.shape[1:]) >= 8:
        return np.asarray(values.transpose(1, 2, 0))
    return values if values.ndim == 3 and values.shape[2] in (1, 3) and min(values.shape[:2]) >= 8 else None


def _png(pixels: Array) -> str:
    """The picture from its darkest to its brightest value, what is not finite in red; at most so large."""
    from PIL import Image

    every = math.ceil(max(pixels.shape[:2]) / _PIXELS)
    pixels = pixels[::every, ::every].astype(np.float64)
    finite = np.isfinite(pixels)
    low, high = (pixels[finite].min(), pixels[finite].max()) if finite.any() else (0.0, 1.0)
    scaled = (np.where(finite, pixels, low) - low) / (high - low or 1.0) * 255
    image = np.broadcast_to(scaled, (*scaled.shape[:2], 3)).astype(np.uint8).copy()
    image[~finite.all(axis=2)] = (213, 0, 0)
    data = io.BytesIO()
    Image.fromarray(image).save(data, "PNG")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"


if __name__ == "__main__":
    print(json.dumps(saved_samples(RunFolder.open(Path(sys.argv[1]))), ensure_ascii=False, default=str))

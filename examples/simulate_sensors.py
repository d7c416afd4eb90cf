"""Simulate events in a box whose walls carry light sensors, and write them as ROOT, Parquet or .npz.

    python examples/simulate_sensors.py box 4000            box/train.root, box/val.root, box/sensors.yaml

A source at a random place emits a number of photons in proportion to its energy. Each sensor counts those that hit it (Poisson,
with dark counts) and measures when the first one arrives. Some sensors are dead in a run, and some events miss a few more.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

SIDE, ROWS = 1.0, 8  # metres; sensors along an edge of a wall
INVALID = -999.0
PHOTONS, SPEED = 20_000, 0.2  # per unit of energy; metres per nanosecond
CONFIG = """\
data: {folder}/train.{ending}
val: {folder}/val.{ending}
array:
  invalid: {invalid}
  channels:
    charge: {{transform: sqrt}}
    time: {{}}
  faces:
    front: {{kind: grid, shape: [{rows}, {rows}], start: 0}}
    back: {{kind: grid, shape: [{rows}, {rows}], start: {back}}}
    top: {{kind: hex, shape: [{rows}, {rows}], start: {top}}}
    corners: {{kind: set, start: {corners}, count: 8}}
targets:
  energy: {{loss_fn: smooth_l1, loss_beta: 0.02}}
  position: {{branch: [x, y, z], loss_fn: smooth_l1, loss_beta: 0.02, weight: 2}}
"""


def sensors() -> np.ndarray:
    """Where the sensors are: two walls, a ceiling of hexagons, the eight corners."""
    steps = (np.arange(ROWS) + 0.5) / ROWS * SIDE
    down, across = np.meshgrid(steps, steps, indexing="ij")
    shifted = across + np.where(np.arange(ROWS) % 2, 0.5, 0.0)[:, None] * SIDE / ROWS
    front = np.stack([across, down, np.zeros_like(down)], axis=-1).reshape(-1, 3)
    back = front + np.array([0.0, 0.0, SIDE])
    top = np.stack([shifted, np.full_like(down, SIDE), down], axis=-1).reshape(-1, 3)
    corners = SIDE * np.array(np.meshgrid([0, 1], [0, 1], [0, 1])).reshape(3, 8).T
    return np.concatenate([front, back, top, corners])


def simulate(events: int, random: np.random.Generator, dead: np.ndarray) -> dict[str, np.ndarray]:
    """Events as columns: charge and time of each sensor, energy and place of the source."""
    places = sensors()
    energy = random.uniform(0.5, 2.0, events)
    source = random.uniform(0.1, 0.9, (events, 3)) * SIDE
    distance = np.linalg.norm(places[None] - source[:, None], axis=2)
    expected = PHOTONS * energy[:, None] * (SIDE / ROWS) ** 2 / (4 * np.pi * distance**2) + 0.5
    charge = random.poisson(expected) + random.normal(0, 0.3, expected.shape)
    first = distance / SPEED + random.exponential(5.0, expected.shape) / np.maximum(expected, 1)
    time = first + random.normal(0, 0.2, first.shape)
    off = dead[None] | (random.random(charge.shape) < 0.01)
    time[charge < 0.5] = INVALID
    charge[off] = time[off] = INVALID
    columns = {"charge": charge, "time": time, "energy": energy, "x": source[:, 0], "y": source[:, 1], "z": source[:, 2]}
    return {name: values.astype(np.float32) for name, values in columns.items()}


def write(path: Path, columns: dict[str, np.ndarray]) -> None:
    """Write the columns in the format that the name says."""
    if path.suffix == ".npz":
        np.savez(path, **columns)
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        lists = {name: pa.array(list(values)) if values.ndim > 1 else pa.array(values) for name, values in columns.items()}
        pq.write_table(pa.table(lists), path, row_group_size=1000)
    else:
        import uproot

        with uproot.recreate(path) as file:
            file.mktree("events", {name: np.dtype((values.dtype, values.shape[1:])) for name, values in columns.items()})
            for start in range(0, len(columns["energy"]), 1000):
                file["events"].extend({name: values[start : start + 1000] for name, values in columns.items()})


def main(folder: str = "box", events: str = "4000", ending: str = "root") -> None:
    """Write training and validation events, and the config."""
    random, into, count = np.random.default_rng(0), Path(folder), int(events)
    into.mkdir(parents=True, exist_ok=True)
    dead = random.random(len(sensors())) < 0.03
    for name, some in (("train", count), ("val", max(1, count // 4))):
        write(into / f"{name}.{ending}", simulate(some, random, dead))
    starts = {"back": ROWS**2, "top": 2 * ROWS**2, "corners": 3 * ROWS**2}
    text = CONFIG.format(folder=folder, ending=ending, rows=ROWS, invalid=INVALID, **starts)
    (into / "sensors.yaml").write_text(text, encoding="utf-8")
    print(f"{count:,} training and {max(1, count // 4):,} validation events of {len(sensors())} sensors in {folder}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""`holdfast train sensors` on a GPU: what a step costs, and whether the loader keeps the GPU busy.

    python benchmarks/train_sensors.py                batch 2048 × 4,760 sensors with two channels, about two minutes
    python benchmarks/train_sensors.py --quick        a small array on the CPU: shows that it runs, and is not judged

Step: the regressor in our loop under `heal`, against the same model, optimizer and clipping in a bare loop, on the same batches
in memory; both in one process, in turn. At most 1.03 times as long, by the median of the rounds.
Loader: the same training from files (ROOT where uproot is installed, Parquet, .npz). The GPU is busy for at least 90 % of the
time by NVML; where NVML cannot be read, by the step from memory as a fraction of the step from files.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine, today
from torch import nn

from holdfast.train.devices import Place
from holdfast.train.loop import Training
from holdfast.train.optimize import make_optimizer
from holdfast.train.sensors.task import SensorsTask
from holdfast.train.settings import SensorsSettings

MOST_TIME, LEAST_BUSY = 1.03, 0.90
WARM, INVALID = 6, -999.0
LARGE = {
    "inner": {"shape": [93, 44]},
    "outer": {"kind": "hex", "shape": [16, 24], "start": 4092},
    "sides": {"start": 4476, "count": 284},
}
SMALL = {
    "inner": {"shape": [12, 12]},
    "outer": {"kind": "hex", "shape": [6, 6], "start": 144},
    "sides": {"start": 180, "count": 58},
}


def settings_of(data: Path, folder: Path, arguments: argparse.Namespace, name: str) -> SensorsSettings:
    """A regression of energy and position, one epoch long."""
    channels = {"charge": {"transform": "sqrt"}, "time": {}}
    return SensorsSettings(
        data=str(data / "train*"),
        val=str(data / "val*"),
        array={"channels": channels, "faces": SMALL if arguments.quick else LARGE, "invalid": INVALID},
        targets={"energy": {}, "position": {"branch": "position"}},
        epochs=1,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        half=arguments.half,
        save_minutes=0.0,
        project=str(folder / "runs"),
        name=name,
        device="cpu" if arguments.quick else "0",
    )


# Data


def events(count: int, sensors: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Photon counts and times."""
    energy = random.uniform(0.5, 2.0, count)
    charge = random.poisson(20 * energy[:, None], (count, sensors))
    drawn = random.normal(30, 5, (count, sensors))
    drawn[random.random((count, sensors), dtype=np.float32) < 0.05] = INVALID
    columns = {"charge": charge, "time": drawn, "energy": energy, "position": random.random((count, 3))}
    return {name: values.astype(np.float32) for name, values in columns.items()}


def write(folder: Path, ending: str, block: dict[str, np.ndarray], files: int, times: int) -> None:
    """Files with the same block of events so many times, of which all but the first are links; validation is one block."""
    folder.mkdir()
    for name, count in [("train-0", times), ("val", 1)]:
        path = folder / f"{name}.{ending}"
        if ending == "npz":
            np.savez(path, **{key: np.concatenate([values] * count) for key, values in block.items()})
        elif ending == "parquet":
            _write_parquet(path, block, count)
        else:
            import uproot

            with uproot.recreate(path, compression=uproot.LZ4(1)) as file:
                file.mktree("events", {key: np.dtype((values.dtype, values.shape[1:])) for key, values in block.items()})
                for _ in range(count):
                    file["events"].extend(block)
    for number in range(1, files):
        (folder / f"train-{number}.{ending}").hardlink_to(folder / f"train-0.{ending}")


def _write_parquet(path: Path, block: dict[str, np.ndarray], times: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column(values: np.ndarray) -> Any:
        if values.ndim == 1:
            return pa.array(values)
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])

    table = pa.table({key: column(values) for key, values in block.items()})
    with pq.ParquetWriter(path, table.schema, compression="lz4", use_dictionary=False) as writer:
        for _ in range(times):
            writer.write_table(table, row_group_size=512)


# Both loops


class Stopwatch:
    """The time from the start of the `WARM`th step to the start of the last one; the device has nothing to do at both."""

    def __init__(self, steps: int, busy: Busy | None = None) -> None:
        self.steps, self.seen, self.begun, self.seconds, self._busy = steps, 0, 0.0, 0.0, busy

    def step(self) -> None:
        """A step begins."""
        self.seen += 1
        if self.seen not in (WARM, self.steps):
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if self.seen == WARM:
            self.begun = time.perf_counter()
            if self._busy is not None:
                self._busy.start()
        else:
            self.seconds = (time.perf_counter() - self.begun) / (self.steps - WARM)
            if self._busy is not None:
                self._busy.stop()


class Busy:
    """What NVML says of the GPU, asked ten times a second."""

    def __init__(self) -> None:
        self.samples: list[int] = []
        self._over, self._thread = threading.Event(), threading.Thread(target=self._sample, daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """No more."""
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        with contextlib.suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            device = pynvml.nvmlDeviceGetHandleByIndex(0)
            while not self._over.wait(0.1):
                self.samples.append(pynvml.nvmlDeviceGetUtilizationRates(device).gpu)

    @property
    def fraction(self) -> float | None:
        """The mean, without the first samples: they look back to before the start."""
        return statistics.mean(self.samples[3:]) / 100 if len(self.samples) > 6 else None


class Timed(SensorsTask):
    """The task, which tells a stopwatch of every step."""

    watch: Stopwatch

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.watch.step()
        return super().loss(model, batch)


class Kept(torch.utils.data.Dataset):
    """A few batches in memory, again and again."""

    def __init__(self, batches: list[dict[str, torch.Tensor]], steps: int) -> None:
        self.batches, self.size = batches, len(batches[0]["index"])
        self.steps = steps

    def __len__(self) -> int:
        return self.steps * self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: values[index % self.size] for name, values in self.batches[0].items()}

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        return self.batches[indices[0] // self.size % len(self.batches)]


class FromMemory(Timed):
    """The same training on batches in memory."""

    kept: Kept

    def train_data(self) -> Any:
        return self.kept

    def some_batches(self, count: int, batch: int) -> list[dict[str, torch.Tensor]]:
        """The first batches of the files, in memory that the GPU copies from at full speed."""
        made = [super(FromMemory, self).train_data().__getitems__(range(one * batch, (one + 1) * batch)) for one in range(count)]
        pinned = self._place.device.type == "cuda"
        return [{name: values.pin_memory() if pinned else values for name, values in one.items()} for one in made]


def ours(task: Timed, settings: SensorsSettings, place: Place, watch: Stopwatch) -> float:
    """Seconds a step in our loop."""
    task.watch = watch
    with contextlib.redirect_stdout(io.StringIO()):
        Training(task, settings, place).fit()
    return watch.seconds


def bare(task: SensorsTask, settings: SensorsSettings, place: Place, kept: Kept, watch: Stopwatch) -> float:
    """Seconds a step in the shortest loop that does the same."""
    with contextlib.redirect_stdout(io.StringIO()):
        model = task.model().to(place.device).train()
    optimizer, parameters = make_optimizer(model, settings, settings.lr0), list(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, kept.steps)
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(settings.half)
    for number in range(kept.steps):
        batch = {name: one.to(place.device, non_blocking=True) for name, one in kept.batches[number % len(kept.batches)].items()}
        watch.step()
        with torch.autocast(place.device.type, kind, enabled=kind is not None):
            loss = SensorsTask.loss(task, model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
    return watch.seconds


# What is measured


def measure_steps(
    task: FromMemory, settings: SensorsSettings, place: Place, rounds: int, steps: int
) -> tuple[list[float], list[float]]:
    """Seconds a step of each round: ours, bare. The first round does not count."""
    mine, theirs = [], []
    for number in range(rounds + 1):
        chosen = settings.with_changes(name=f"step-{number}", workers=0)
        pair = {
            "ours": lambda chosen=chosen: ours(task, chosen, place, Stopwatch(steps)),
            "bare": lambda: bare(task, settings, place, task.kept, Stopwatch(steps)),
        }
        first, second = ("ours", "bare") if number % 2 else ("bare", "ours")
        seconds = {first: pair[first](), second: pair[second]()}
        if number:
            mine.append(seconds["ours"])
            theirs.append(seconds["bare"])
    return mine, theirs


def measure_loader(settings: SensorsSettings, place: Place) -> tuple[float, float | None]:
    """Seconds a step from files, and how busy the GPU was."""
    with contextlib.redirect_stdout(io.StringIO()):
        task, busy = Timed(settings, place), Busy()
    steps = -(-len(task.train_data()) // settings.batch)
    seconds = ours(task, task.settings, place, Stopwatch(steps, busy if place.device.type == "cuda" else None))
    return seconds, busy.fraction


@contextlib.contextmanager
def heal() -> Iterator[None]:
    """As `holdfast train` does by default."""
    os.environ["HOLDFAST_POLICY"] = "heal"
    yield
    del os.environ["HOLDFAST_POLICY"]


def main() -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small array on the CPU, not judged")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--blocks", type=int, default=96, help="of 2048 events, that are trained on from files")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, help="in a round")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--half", default="none", choices=("none", "bf16"))
    parser.add_argument("--formats", help="such as npz,parquet")
    arguments = parser.parse_args()
    quick = arguments.quick
    if not quick and not torch.cuda.is_available():
        print("no GPU here; --quick runs on the CPU")
        return 2
    arguments.batch_size = arguments.batch_size or (32 if quick else 2048)
    arguments.workers = arguments.workers if arguments.workers is not None else 1 if quick else 8
    arguments.steps = arguments.steps or (10 if quick else 60)
    arguments.rounds = 1 if quick else arguments.rounds
    print(f"{today()}, {machine(1)}")
    place = Place(torch.device("cpu" if quick else "cuda:0"))
    folder = Path(tempfile.mkdtemp(prefix="train-sensors-"))
    try:
        with heal():
            return _measured(arguments, place, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measured(arguments: argparse.Namespace, place: Place, folder: Path) -> int:
    quick, batch, failed = arguments.quick, arguments.batch_size, False
    sensors = 238 if quick else 4760
    block = events(4 * batch if quick else 2048, sensors, np.random.default_rng(0))
    has_root = importlib.util.find_spec("uproot") is not None and importlib.util.find_spec("awkward") is not None
    formats = arguments.formats.split(",") if arguments.formats else [*(["root"] if has_root else []), "parquet", "npz"]
    if not has_root:
        print("uproot is not installed: ROOT files are not measured, Parquet and .npz are")
    files, times = (2, 2) if quick else (max(1, arguments.blocks // 6), 6)
    shared = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").exists() else 0
    loaded = f"{arguments.half}, {arguments.workers} workers, {shared >> 20} MiB of shared memory"
    print(f"batch {batch} × {sensors} sensors × 2 channels, {loaded}")

    write(folder / "npz", "npz", block, files, times)
    settings = settings_of(folder / "npz", folder, arguments, "step")
    with contextlib.redirect_stdout(io.StringIO()):
        task = FromMemory(settings, place)
    task.kept = Kept(task.some_batches(4, batch), arguments.steps)
    mine, theirs = measure_steps(task, task.settings, place, arguments.rounds, arguments.steps)
    ratio = statistics.median(one / other for one, other in zip(mine, theirs, strict=True))
    verdict = "not judged" if quick else "ok" if ratio <= MOST_TIME else "MISSED"
    failed |= verdict == "MISSED"
    rounds = ", ".join(f"{one / other:.3f}" for one, other in zip(mine, theirs, strict=True))
    words = f"ours {1e3 * statistics.median(mine):.2f} ms, bare {1e3 * statistics.median(theirs):.2f} ms; {ratio:.3f} times"
    print(f"step: {words} (rounds: {rounds}), at most {MOST_TIME}: {verdict}", flush=True)

    for ending in formats:
        if not (folder / ending).exists():
            write(folder / ending, ending, block, files, times)
        seconds, fraction = measure_loader(settings_of(folder / ending, folder, arguments, f"loader-{ending}"), place)
        by_step = statistics.median(mine) / seconds
        judged = fraction if fraction is not None else by_step
        verdict = "not judged" if quick else "ok" if judged >= LEAST_BUSY else "MISSED"
        failed |= verdict == "MISSED"
        rate = batch * sensors * 8 / seconds / 1e9
        shown = f"GPU busy {100 * fraction:.1f} % (NVML)" if fraction is not None else "no NVML"
        words = f"step {1e3 * seconds:.2f} ms, {rate:.2f} GB/s, {shown}; step from memory is {100 * by_step:.1f} % of it"
        print(f"loader, {ending}: {words}; at least {100 * LEAST_BUSY:.0f} %: {verdict}", flush=True)
        shutil.rmtree(folder / ending)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Follow all ranks of a training, and the GPUs of its machine, through their tables: what one rank alone does not show."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.machine import MachineView, computing_on_cpu, low_gpu_utilisation
from holdfast.detectors.rank_divergence import RankDivergence
from holdfast.detectors.ranks_differ import ranks_differ
from holdfast.detectors.straggler import Held, Straggler
from holdfast.probe.follow import Follower
from holdfast.signals.lineage import script_of
from holdfast.signals.run_folder import Recording, RunFolder
from holdfast.signals.view import Column, Floats, measured

_NORMS = ("step", "grad_norm", "weight_norm")
_TIMES = ("step_seconds", "data_seconds")
_CPU = re.compile(r"(?:device|accelerator)\w*[\"']?\s*[=:( ]\s*[\"']?cpu\b", re.IGNORECASE)
_GPU = re.compile(r"cuda|gpu|mps|xpu", re.IGNORECASE)
_AT_A_TIME = 256  # rows of each rank
_LAST = 900  # samples of the GPUs that are kept: half an hour


class RanksFollower:
    """Reads on from where it was, in the tables of every rank of one training."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self._ranks = [_Rank(recording) for recording in recordings]
        self._divergence, self._straggler = RankDivergence(len(recordings)), Straggler(len(recordings))

    def read(self) -> Iterator[Finding]:
        """What is found in the rows since the last call. Ranks are read side by side, or those of thousands would not fit."""
        while unread := [rank for rank in self._ranks if rank.has_rows()]:
            horizon = min(int(one.rows["step"][-1]) for one in unread)
            for one in unread:
                rows = one.rows_until(horizon)
                yield from self._norms(one.rank, rows)
                yield from self._times(one, rows)

    def _norms(self, rank: int, rows: Mapping[str, Column]) -> Iterator[Finding]:
        valid = measured(rows["grad_norm"]) & measured(rows["weight_norm"])
        for step, *norms in zip(*(rows[name][valid].tolist() for name in _NORMS), strict=True):
            if np.isfinite(norms).all() and (finding := self._divergence.add(rank, step, *norms)) is not None:
                yield finding

    def _times(self, one: _Rank, rows: Mapping[str, Column]) -> Iterator[Finding]:
        one.read_held()
        for step, whole, data in zip(*(rows[name].tolist() for name in ("step", *_TIMES)), strict=True):
            held = one.held.pop(step, None)
            if held is not None and np.isfinite(whole):
                times = Held(held, whole, data if np.isfinite(data) else 0.0)
                if (finding := self._straggler.add(one.rank, step, times)) is not None:
                    yield finding


def trained_together(recordings: Iterable[Recording]) -> dict[tuple[int, int], list[Recording]]:
    """Recordings by training and by its number of ranks: where torchrun starts again with fewer or more, ranks count apart."""
    together: dict[tuple[int, int], list[Recording]] = {}
    for recording in recordings:
        if info := recording.info():  # else it is just beginning
            together.setdefault((recording.part, int(info.get("world_size") or 0)), []).append(recording)
    return together


class SetupFollower:
    """What the ranks of one training say about themselves, read again where it was written again; each finding once."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self._recordings = recordings
        self._changed: dict[int, int] = {}
        self._setups: dict[int, dict[str, Any]] = {}
        self._reported: set[tuple[str, int]] = set()

    def read(self, step: int = 0) -> Iterator[Finding]:
        """What is found now and was not reported yet."""
        num_new = sum(self._read(recording) for recording in self._recordings)
        if num_new == 0 or len(self._setups) < len(self._recordings):
            return
        for finding in ranks_differ(self._setups, step=step):
            key = (finding.evidence["what"], finding.evidence["rank"])
            if key not in self._reported:
                self._reported.add(key)
                yield finding

    def _read(self, recording: Recording) -> bool:
        """Whether there was something new; the file's own time tells how far the rank's clock is ahead."""
        path = recording.path / "setup.json"
        with contextlib.suppress(OSError, ValueError):
            changed = path.stat()
            if self._changed.get(recording.rank) == changed.st_mtime_ns:
                return False
            setup = json.loads(path.read_text(encoding="utf-8"))
            self._changed[recording.rank] = changed.st_mtime_ns
            self._setups[recording.rank] = {**setup, "clock": float(setup["clock"]) - changed.st_mtime}
            return True
        return False


class _Rank:
    """The tables of one rank; `held` is how long the ranks' common work held it, for steps that are not over yet."""

    def __init__(self, recording: Recording) -> None:
        self.rank = recording.rank
        self.steps = Follower(recording.path, "steps", (*_NORMS, *_TIMES))
        self.rows: dict[str, Column] = {}
        self.held: dict[int, float] = {}
        self._collectives = Follower(recording.path, "collectives", ("step", "seconds"))

    def has_rows(self) -> bool:
        """Whether there are steps that were not compared yet."""
        if not self.rows or not len(self.rows["step"]):
            self.rows = self.steps.new_rows(_AT_A_TIME)
        return len(self.rows["step"]) > 0

    def rows_until(self, step: int) -> dict[str, Column]:
        """Take the rows up to a step."""
        count = int(np.searchsorted(self.rows["step"], step, side="right")) or 1  # a roll-back counts steps again
        taken = {name: values[:count] for name, values in self.rows.items()}
        self.rows = {name: values[count:] for name, values in self.rows.items()}
        return taken

    def read_held(self) -> None:
        """All that was written before the steps that were just read had ended."""
        while len((rows := self._collectives.new_rows())["step"]):
            for step, seconds in zip(rows["step"].tolist(), rows["seconds"].tolist(), strict=True):
                self.held[step] = self.held.get(step, 0.0) + seconds


class MachineFollower:
    """What the first training of a run makes of the GPUs of its machine; each finding is reported once."""

    def __init__(self, run: RunFolder, recording: Recording) -> None:
        self._steps = Follower(recording.path, "steps", ("step", "step_seconds", "gpu_allocated"))
        self._gpus = Follower(run.path / "host", "gpus", ("time", "gpu", "utilisation"))
        self._torch = str((run.info().get("packages") or {}).get("torch") or "")
        self._cpu_chosen = chooses_cpu(run.info())
        self._seen, self._step, self._on_gpu = 0, 0, False
        self._seconds: Floats = np.zeros(0)
        self._shares: dict[int, list[float]] = {}
        self._reported: set[str] = set()

    def read(self) -> Iterator[Finding]:
        """What is found now and was not reported yet."""
        while len((rows := self._steps.new_rows())["step"]):
            self._seen, self._step = self._seen + len(rows["step"]), int(rows["step"][-1])
            self._on_gpu = self._on_gpu or bool(measured(rows["gpu_allocated"]).any())
            self._seconds = np.concatenate([self._seconds, rows["step_seconds"][measured(rows["step_seconds"])]])[-4096:]
        while len((rows := self._gpus.new_rows())["time"]):
            for gpu, share in zip(rows["gpu"].tolist(), rows["utilisation"].tolist(), strict=True):
                self._shares.setdefault(gpu, []).append(share)
                del self._shares[gpu][:-_LAST]
        for detector in (computing_on_cpu, low_gpu_utilisation):
            finding = detector(self._view())
            if finding is not None and finding.code not in self._reported:
                self._reported.add(finding.code)
                yield finding

    def _view(self) -> MachineView:
        busiest = max(self._shares.values(), key=lambda shares: float(np.nanmean(shares)) if len(shares) else 0.0, default=[])
        return MachineView(
            step=self._step,
            steps=self._seen,
            step_seconds=float(np.median(self._seconds)) if len(self._seconds) else 0.0,
            on_gpu=self._on_gpu,
            gpus=len(self._shares),
            torch=self._torch,
            cpu_chosen=self._cpu_chosen,
            utilisation=np.array(busiest),
        )


def chooses_cpu(info: Mapping[str, Any]) -> bool:
    """Whether the GPUs are hidden, or the command, or a script that names no GPU at all, names the CPU as its device."""
    if info.get("gpus_hidden") or _CPU.search(" ".join(map(str, info.get("command") or ()))):
        return True
    source = ""
    with contextlib.suppress(OSError):
        source = Path(script_of(info) or "").read_text(encoding="utf-8", errors="replace")
    return bool(_CPU.search(source)) and not _GPU.search(source)

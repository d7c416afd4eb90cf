"""The runs that the page lists: of this machine, of finished run folders, and of other servers; each with one row of facts."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any

from holdfast.diagnosis.event_words import sentence, word
from holdfast.errors import HoldfastError, NoSuchRun
from holdfast.probe.address import parse
from holdfast.probe.cluster import at_once
from holdfast.probe.glance import Glance, look
from holdfast.probe.journal import Event, Folding, JournalReader
from holdfast.probe.remote import Remote
from holdfast.probe.rows import last_rows
from holdfast.probe.state import RankState
from holdfast.signals.run_folder import RunFolder
from holdfast.web.curves import Overview, RunCurves

_ROWS = 4096  # of the newest steps: two epochs of them tell how long the run will take
_FRESH_SECONDS = 0.4  # what was read so lately is shown to the next who asks
_SPARK_SECONDS = 5.0  # the small picture of a loss changes slowly
_ROWS_KEPT = 2_000_000  # of curves, about 45 bytes each
_FAR_SECONDS, _AWAY_SECONDS = 4.0, 15.0
_TONES = {
    "healthy": "ok",
    "finished": "over",
    "starting": "over",
    "paused": "over",
    "warning": "warn",
    "guarded": "warn",
    "healing": "warn",
    "degraded": "warn",
    "resumed": "warn",
}


class Watched:
    """One run of this machine: its journal, read on, and the newest look at it."""

    def __init__(self, run: RunFolder) -> None:
        self.run, self.lock = run, threading.Lock()
        self._reader, self._folding = JournalReader(run.journal.path), Folding()
        self._looked: tuple[float, Glance] | None = None
        self._overview, self._spark, self._sparked = Overview(run), list[float | None](), 0.0
        self.checkup: tuple[Any, float, dict[str, Any]] | None = None  # kept by `checkups`

    def look(self) -> Glance:
        """The state of the run now, as `tail` shows it."""
        with self.lock:
            now = time.monotonic()
            if self._looked is None or now - self._looked[0] > self._keep_seconds(self._looked[1]):
                for row in self._reader.new_rows():
                    self._folding.add(row)
                events = self._folding.events
                if not self._spark or now - self._sparked > _SPARK_SECONDS:
                    self._spark, self._sparked = self._overview.update(), now
                glance = look(self.run, rows=_ROWS, curves=False, journal=self._reader.rows, events=events)
                self._looked = (time.monotonic(), glance)
            return self._looked[1]

    def _keep_seconds(self, glance: Glance) -> float:
        return _FRESH_SECONDS if glance.state.alive else 5.0

    @property
    def rows(self) -> Sequence[dict[str, Any]]:
        """What the journal holds, as of the newest look."""
        return self._reader.rows

    def row(self, known_as: str) -> dict[str, Any]:
        """The facts that the list and the head of the page show."""
        glance = self.look()
        state, lead = glance.state, glance.lead
        health = state.health
        return {
            "id": known_as,
            "name": state.name,
            "host": str(self.run.info().get("host") or socket.gethostname()),
            "folder": state.folder,
            "command": " ".join(state.command),
            "alive": state.alive,
            "health": health,
            "reason": state.reason,
            "tone": tone(health),
            "policy": state.policy,
            "ranks": len({rank.rank for rank in state.ranks}),
            "started": state.started,
            "ended": state.ended,
            **_figures(lead),
            **_progress(glance),
            "gpu": _gpu(self.run),
            "spark": self._spark,
            "action": _last_action(glance.events),
            "findings": sum(event.kind == "finding" and event.severity != "info" for event in glance.events),
        }


def tone(health: str) -> str:
    """How a health is coloured: ok, warn, bad, or over."""
    return next((tone for begin, tone in _TONES.items() if health.startswith(begin)), "bad")


def _figures(lead: RankState | None) -> dict[str, Any]:
    names = ("step", "epoch", "loss", "grad_norm", "lr", "rate", "age", "data_share", "budget", "gpu_memory", "host_memory")
    figures: dict[str, Any] = {name: getattr(lead, name, None) for name in (*names, "evaluation")}
    if (figures["epoch"] or 0) < 0:
        figures["epoch"] = None
    return figures


def _progress(glance: Glance) -> dict[str, Any]:
    progress = glance.progress
    if progress is None:
        return {"epochs": None, "eta": None, "epoch_eta": None}
    return {"epochs": progress.epochs, "eta": progress.run_seconds, "epoch_eta": progress.epoch_seconds}


def _gpu(run: RunFolder) -> float | None:
    rows = last_rows(run.path / "host", "gpus", ("time", "gpu", "utilisation"), 16)
    newest = rows["utilisation"][rows["time"] >= rows["time"].max() - 1.0] if len(rows["time"]) else ()
    return float(newest.mean()) if len(newest) else None  # type: ignore[union-attr]


def _last_action(events: Sequence[Event]) -> dict[str, Any] | None:
    last = next((event for event in reversed(events) if event.kind in ("action", "change")), None)
    return None if last is None else {"words": sentence(last, brief=True), "step": last.step, "time": last.time}


def marks(events: Sequence[Event]) -> list[dict[str, Any]]:
    """What happened, as marks on the curves; `number` counts them."""
    return [
        {
            "number": number,
            "kind": event.kind,
            "code": event.code,
            "tone": {"critical": "bad", "warning": "warn", "refused": "bad"}.get(word(event), "info"),
            "word": word(event),
            "step": event.step,
            "time": event.time,
            "words": sentence(event),
            "ranks": sorted(event.ranks),
            "undo": event.row.get("number") if event.kind == "change" and event.row.get("do") == "set" else None,
        }
        for number, event in enumerate(events)
    ]


class Runs:
    """All runs by the id that the page knows them by: the name, with a few digits where two have the same; HOST:PORT/NAME."""

    def __init__(self, local: Any, far: Sequence[str]) -> None:
        self._local, self._far = local, {target: Remote(address) for target in far if (address := parse(target)) is not None}
        self._away: dict[str, tuple[float, HoldfastError | None]] = {}
        self._watched: dict[str, Watched] = {}
        self._curves: OrderedDict[str, RunCurves] = OrderedDict()
        self._lock = threading.Lock()

    def here(self) -> dict[str, RunFolder]:
        """The runs of this machine."""
        runs = list({run.path: run for run in self._local()}.values())
        names = Counter(run.name for run in runs)
        return {run.name if names[run.name] == 1 else f"{run.name}~{_digits(run)}": run for run in runs}

    def rows(self) -> tuple[list[dict[str, Any]], list[str]]:
        """A row for each run, and a sentence for each server that did not answer."""
        rows = []
        for known_as, run in self.here().items():
            with contextlib.suppress(OSError, HoldfastError):  # one that is being deleted
                rows.append(self._watch(run).row(known_as))
        problems = []
        for target, answer in zip(self._far, at_once(self._ask, self._far), strict=True):
            if isinstance(answer, HoldfastError):
                problems.append(answer.problem)
            else:
                rows += [{**row, "id": f"{target}/{row['id']}", "far": target} for row in answer["runs"]]
        return rows, problems

    def _ask(self, target: str) -> Any:
        """The runs of another server. One that did not answer is left alone for a while: the others are not to wait for it."""
        until, problem = self._away.get(target, (0.0, None))
        if problem is not None and time.monotonic() < until:
            raise problem
        try:
            return self._far[target].get("/api/runs", seconds=_FAR_SECONDS)
        except HoldfastError as error:
            self._away[target] = (time.monotonic() + _AWAY_SECONDS, error)
            raise

    def find(self, known_as: str) -> Watched:
        """A run of this machine."""
        run = self.here().get(known_as)
        if run is None:
            raise NoSuchRun(f"there is no run {known_as!r} here.", fix="holdfast ps --all lists the runs")
        return self._watch(run)

    def far(self, known_as: str) -> tuple[Remote, str] | None:
        """The server that has a run, and how that server calls it; None for a run of this machine."""
        for target, remote in self._far.items():
            if known_as.startswith(f"{target}/"):
                return remote, known_as.removeprefix(f"{target}/")
        return None

    def curves(self, watched: Watched) -> RunCurves:
        """The curves of a run, read up to now. Those that nobody looked at for longest are forgotten."""
        path = str(watched.run.path)
        with self._lock:
            curves = self._curves.pop(path, None) or RunCurves(watched.run)
            self._curves[path] = curves
            while len(self._curves) > 1 and sum(curve.columns.rows for curve in self._curves.values()) > _ROWS_KEPT:
                self._curves.popitem(last=False)
        curves.update()
        return curves

    def _watch(self, run: RunFolder) -> Watched:
        with self._lock:
            return self._watched.setdefault(str(run.path), Watched(run))


def _digits(run: RunFolder) -> str:
    return hashlib.sha256(str(run.path).encode()).hexdigest()[:4]

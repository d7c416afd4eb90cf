"""Measure a loader within a time: where a sample's time goes, what each setting gives, and which one is the best that fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.errors import UsageError
from holdfast.loading.measurer import DIED, DONE, OUTGREW, SILENT, Answer, Measurer
from holdfast.loading.setting import COLD, PREFETCH, Limits, Loader, Phases, Setting, Trial, by_setting, chosen

# Which setting to try next: coarse over the workers first, then around the best. Pure: it does not measure.

_NOTICED = 1.05  # what is gained by less is noise
_STILL_RISING = 1.15
_MOST_WORKERS, _BEYOND = 64, 4  # and times the processors, or 16: who waits for a network can use more than there are


@dataclass(slots=True)
class Search:
    """Takes trials in, gives settings out. `cores` are the processors that may be used."""

    own: Setting
    cores: int
    limits: Limits
    cuda: bool = False
    trials: list[Trial] = field(default_factory=list)

    def settings(self) -> Iterator[Setting]:
        """What to try, one after the other; each is to be added to `trials` before the next is asked for."""
        yield self.own
        for some in (self._workers, self._pin, self._between, self._threads, self._prefetch):
            for setting in some():
                if all(trial.setting != setting for trial in self.trials):
                    yield setting

    @property
    def best(self) -> Setting:
        """The one to continue from."""
        trial = chosen(self.trials, self.limits)
        return trial.setting if trial else self.own

    @property
    def _most(self) -> int:
        return min(_MOST_WORKERS, max(16, _BEYOND * self.cores))

    def _rate(self, setting: Setting) -> float:
        return next((trial.rate or 0.0 for trial in by_setting(self.trials) if trial.setting == setting), 0.0)

    def _outgrows(self, workers: int) -> bool:
        """Whether so many workers would take more memory than there is, by what the workers so far took."""
        each = [trial.memory / trial.setting.workers for trial in self.trials if trial.memory and trial.setting.workers]
        return bool(each) and min(each) * workers > self.limits.memory

    def _workers(self) -> Iterator[Setting]:
        """0, 1, 2, 4, … as long as it helps; up to the processors, and beyond while workers wait more than they work."""
        if self.limits.workers is not None:
            yield self.own.with_workers(self.limits.workers)
            return
        best, failed, workers = 0.0, 0, 0
        while workers <= self._most and failed < 2 and not self._outgrows(workers):
            setting = self.own.with_workers(workers)
            yield setting
            rate = self._rate(setting)
            failed = failed + 1 if not rate else 0
            if workers >= 2 and rate < best * (_STILL_RISING if workers >= self.cores else _NOTICED):
                return
            best = max(best, rate)
            workers = max(1, workers * 2)

    def _between(self) -> Iterator[Setting]:
        """Halfway to the neighbours of the best number of workers."""
        best = self.best
        if self.limits.workers is None and best.workers > 2:
            for workers in (best.workers * 3 // 4, best.workers * 3 // 2):
                if workers <= self._most and not self._outgrows(workers):
                    yield best.with_workers(workers)

    def _threads(self) -> Iterator[Setting]:
        """More threads in each worker, where processors are left. Without workers they are the training's, and left alone."""
        best, most = self.best, self.limits.threads or self.cores
        if not best.workers:
            return
        threads = 2
        while threads <= most and best.workers * threads <= max(self.cores, self.limits.threads or 1):
            setting = replace(best, threads=threads)
            yield setting
            if self.limits.threads is None and self._rate(setting) < self._rate(self.best) / _NOTICED:
                return
            threads = most if threads < most < threads * 2 else threads * 2

    def _prefetch(self) -> Iterator[Setting]:
        best = self.best
        if best.workers:
            for prefetch in (4, 8) if best.prefetch in (None, PREFETCH) else (PREFETCH,):
                yield replace(best, prefetch=prefetch)

    def _pin(self) -> Iterator[Setting]:
        if self.cuda:
            yield replace(self.best, pin=not self.best.pin)

    def again(self) -> Iterator[Setting]:
        """The best and the user's own once more: the first of all may have met files that no cache held."""
        best = self.best
        if best != self.own:
            yield best
        yield self.own


_PHASES_SHARE, _WINDOW_SHARE = 0.1, 1 / 30
_LEAST_WINDOW, _LONGEST_WINDOW = 0.4, 2.0
_ENOUGH = 20.0  # seconds that are enough to keep some of them for measuring the best once more
_TO_MAKE = 60.0  # seconds, at least, for imports and the factory
_PATIENCE = 8.0  # seconds after which a setting that gives no batch is given up, or a quarter of the time
_FIXES = {
    "raised": "call the data set alone at that line",
    SILENT: "look at that line: a worker waits there for something that never happens (a lock or socket from before its start)",
    DIED: "too little memory or a crash in a library: look at the kernel's log (dmesg), and try fewer workers",
}
LATE = "late"
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to measure and how long."""

    target: str
    batch: int | None = None  # samples of one, where the factory makes a `Dataset`
    seconds: float = 60.0
    cores: int = 1
    limits: Limits
    free: int = 1 << 60  # bytes that the machine has left: what takes them is ended, whatever it is doing


@dataclass(slots=True)
class Benchmark:
    """What was found. `failed` is what is wrong with the loader itself; then there may be no trial."""

    loader: Loader
    limits: Limits
    phases: Phases | None = None
    trials: list[Trial] = field(default_factory=list)
    failed: str | None = None
    fix: str = ""
    cut: int | None = None
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def own(self) -> Trial | None:
        """The user's own setting."""
        return next((trial for trial in by_setting(self.trials) if trial.own), None)

    @property
    def best(self) -> Trial | None:
        """What to take."""
        return chosen(self.trials, self.limits)

    @property
    def gain(self) -> float | None:
        """How many times as fast as the user's own setting that is."""
        own, best = self.own, self.best
        return best.rate / own.rate if own and best and own.rate and best.rate else None


def benchmark(request: Asked, tell: Tell = lambda _: None) -> Benchmark:
    """Measure. Nothing of it happens in this process."""
    return _Measuring(request, tell).run()


class _Measuring:
    """One measurement; a process that was lost is started again for the next setting."""

    def __init__(self, request: Asked, tell: Tell) -> None:
        self._request, self._tell = request, tell
        self._begun = time.monotonic()
        self._measurer: Measurer | None = None
        self._times: dict[Setting, float] = {}
        self._patience = max(min(_PATIENCE, request.seconds / 2), request.seconds / 4)
        self._window = min(_LONGEST_WINDOW, max(_LEAST_WINDOW, request.seconds * _WINDOW_SHARE))

    def run(self) -> Benchmark:
        try:
            report = Benchmark(self._loader(), self._request.limits)
            report.notes += report.loader.notes
            self._look(report)
            if report.failed is None:
                self._try_all(report)
            report.seconds = time.monotonic() - self._begun
            return report
        finally:
            if self._measurer is not None:
                self._measurer.end()

    @property
    def _left(self) -> float:
        return self._request.seconds - (time.monotonic() - self._begun)

    def _loader(self) -> Loader:
        """Start the process and let it make the loader."""
        self._tell(f"making {self._request.target} …")
        answer = self._make()
        loader: Loader | None = answer.facts.get("loader")
        if loader is not None:
            return loader
        if "problem" in answer.facts:
            raise UsageError(answer.facts["problem"], fix=answer.facts["fix"])
        raise UsageError(
            f"{self._request.target} cannot be made: {self._why(answer)}", fix="check whether it runs in a separate Python"
        )

    def _make(self) -> Answer:
        """Start the process; how long imports and factories take is no part of the time to measure in."""
        begun = time.monotonic()
        measurer = Measurer(self._request.target, self._request.batch)
        answer = measurer.made(max(_TO_MAKE, self._request.seconds), self._request.free)
        if "loader" in answer.facts:
            self._measurer = measurer
        else:
            measurer.end()
        self._begun += time.monotonic() - begun
        return answer

    def _look(self, report: Benchmark) -> None:
        """Where the time goes."""
        self._tell("looking where the time goes …")
        assert self._measurer is not None
        measurer = self._measurer
        limit = min(self._left, self._patience)
        seconds = max(0.5, self._request.seconds * _PHASES_SHARE)
        answer = measurer.ask({"do": "phases", "seconds": seconds}, limit, self._request.free)
        facts = answer.facts
        if "phases" in facts:
            report.phases = facts["phases"]
            report.notes += facts["phases"].notes
            report.cut = self._cut(report)
        elif "failed" in facts:
            every = f"`holdfast validate {self._request.target}` lists every such sample"
            report.failed, report.fix = _failed(facts), every if "sample" in facts else _FIXES["raised"]
        else:
            at = f"sample {answer.sample}" if answer.sample else "a sample"
            report.failed = f"{at} cannot be loaded: {self._why(answer)}"
            report.fix = "load that sample alone; exclude it if it cannot be fixed"
        if answer.how != DONE:
            self._measurer = None

    def _cut(self, report: Benchmark) -> int | None:
        """Samples of a batch, where the user's batches take too long to be measured often enough."""
        batch, phases = report.loader.batch, report.phases
        if batch is None or phases is None or not phases.total:
            return None
        most = max(1, int(self._window / 2 / phases.total))
        if batch <= most:
            return None
        report.notes.append(f"batches of {batch} were cut to {most} for the measuring: one takes {phases.total * batch:.1f} s")
        return most

    def _try_all(self, report: Benchmark) -> None:
        loader = report.loader
        search = Search(loader.own, self._request.cores, self._request.limits, bool(loader.cuda), report.trials)
        for setting in search.settings():
            kept = self._took(search.best) + self._took(search.own) if self._request.seconds >= _ENOUGH else 0.0
            if self._left < self._took(search.best) + kept:
                report.notes.append("the time limit was reached before all settings were tried: raise it with --time-limit")
                break
            self._try(report, setting)
        for setting in search.again():
            if self._left > self._took(setting):
                self._try(report, setting)
        rates = [trial.rate for trial in report.trials if trial.own and trial.rate]
        if len(rates) > 1 and rates[-1] > COLD * rates[0]:  # the first of all settings met files that were in no cache
            again = f"{rates[0]:,.0f} samples/s at first, {rates[-1]:,.0f} measured again"
            report.notes.append(f"{again}: the first time files came from the disk")
        many, cores = report.best.setting.workers if report.best else 0, self._request.cores
        if many > cores:
            waits = "they wait more than they work; the training needs processors too"
            report.notes.append(f"{many} workers on {cores} processors: {waits}")

    def _try(self, report: Benchmark, setting: Setting) -> None:
        begun = time.monotonic()
        self._tell(f"measuring {setting.description} …")
        trial = self._trial(report, setting)
        if trial.how == LATE and any(other.rate for other in report.trials if other.setting == setting):
            return  # it was measured before, and only the time ran out for the second look
        report.trials.append(trial)
        self._times[setting] = time.monotonic() - begun
        if len(report.trials) == 1 and trial.failed and trial.how not in (OUTGREW, LATE):
            report.failed = f"your own setting ({setting.description}): {trial.failed}"
            report.fix = _FIXES.get(trial.how, _FIXES["raised"])

    def _took(self, setting: Setting) -> float:
        """Seconds that a setting took to be measured, or one like it would."""
        return max(self._window, self._times.get(setting, max(self._times.values(), default=0.0)))

    def _trial(self, report: Benchmark, setting: Setting) -> Trial:
        limit = min(self._left, self._patience)
        own = setting == report.loader.own
        if self._measurer is None:
            answer = self._make()
            if "loader" not in answer.facts:
                return Trial(setting=setting, own=own, failed=f"the loader could not be created again: {self._why(answer)}")
        assert self._measurer is not None
        row = {"do": "rate", "setting": setting, "seconds": self._window, "at_most": limit, "cut": report.cut}
        answer = self._measurer.ask(row, limit + self._window, self._request.limits.memory)
        if answer.how == DONE and "failed" in answer.facts:
            self._measurer.end()  # torch waits five seconds for each worker of a loader that failed
        self._measurer = self._measurer if answer.how == DONE and "failed" not in answer.facts else None
        facts, trial = answer.facts, Trial(setting=setting, own=own, memory=answer.peak)
        if "rate" in facts:
            more = 0
            if (
                report.cut is not None and report.loader.batch is not None and report.phases is not None
            ):  # whole batches are larger
                waiting = max(1, setting.workers * (setting.prefetch or 1))
                more = (report.loader.batch - report.cut) * report.phases.sample_bytes * waiting  # whole batches are larger
            rates = {name: facts[name] for name in ("rate", "start_seconds", "batches")}
            return replace(trial, memory=max(0, answer.peak) + more, **rates)
        if "failed" in facts:
            return replace(trial, failed=_failed(facts), how=DIED if facts.get("died") else "raised")
        if answer.how == SILENT and limit < self._patience:
            return replace(trial, failed="the time limit came before its first batch", how=LATE)
        return replace(trial, failed=self._why(answer, limit), how=answer.how)

    def _why(self, answer: Answer, limit: float | None = None) -> str:
        stuck = f"; it is stuck at {answer.text}" if answer.text and answer.how == SILENT else ""
        within = f"no batch within {limit:.0f} s" if limit is not None else "it did not finish in time"
        reasons = {SILENT: f"{within}{stuck}", OUTGREW: "it took more memory than it may", DIED: f"the process {answer.text}"}
        return reasons.get(answer.how, answer.text or "it gave no answer")


def _failed(facts: dict[str, Any]) -> str:
    """What a process says of a batch that it could not load."""
    return (f"sample {facts['sample']} cannot be loaded: " if "sample" in facts else "") + str(facts["failed"])

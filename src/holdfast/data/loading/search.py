"""Which setting to try next: coarse over the workers first, then around the best. Pure: it does not measure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from holdfast.data.loading.choice import Limits, by_setting, chosen
from holdfast.data.loading.setting import PREFETCH, Setting, Trial

_NOTICED = 1.05  # what is gained by less is noise
_STILL_RISING = 1.15
_MOST_WORKERS, _BEYOND = 64, 4  # and times the processors, or 16: who waits for a network can use more than there are
_CHUNK_SPAN = 64  # times smaller or larger than the user's


@dataclass(slots=True)
class Search:
    """Takes trials in, gives settings out. `cores` are the processors that may be used."""

    own: Setting
    cores: int
    limits: Limits
    cuda: bool = False
    pool: bool = False  # threads are a pool that reads: they help without a call that takes several
    trials: list[Trial] = field(default_factory=list)

    def settings(self) -> Iterator[Setting]:
        """What to try, one after the other; each is to be added to `trials` before the next is asked for."""
        yield self.own
        yield from self._new(self._workers())
        yield from self._new(self._pin())
        yield from self._new(self._between())
        yield from self._new(self._threads())
        yield from self._new(self._prefetch())
        yield from self._new(self._chunks())

    def _new(self, some: Iterator[Setting]) -> Iterator[Setting]:
        """Those of them that were not measured yet."""
        for setting in some:
            if all(trial.setting != setting for trial in self.trials):
                yield setting

    @property
    def best(self) -> Setting:
        """The one to go on from."""
        found = chosen(self.trials, self.limits)
        return found.setting if found else self.own

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
            chunk = min(self.own.chunk, self.limits.chunk or self.own.chunk) if self.own.chunk else None
            yield replace(self.own.with_workers(self.limits.workers), chunk=chunk)
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
        own = best.chunk is not None and self.limits.threads is None  # the readers of tables have threads of their own
        if own or not (best.workers or self.pool):
            return
        threads = 2
        while threads <= most and max(1, best.workers) * threads <= max(self.cores, self.limits.threads or 1):
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

    def _chunks(self) -> Iterator[Setting]:
        """Chunks four times as large or small, as long as that helps."""
        for factor in (0.25, 4.0):
            while True:
                best = self.best
                rows = int((best.chunk or 0) * factor)
                own = self.own.chunk or 0
                if not max(1, own // _CHUNK_SPAN) <= rows <= (self.limits.chunk or own * _CHUNK_SPAN):
                    break
                yield replace(best, chunk=rows)
                if self.best.chunk != rows:
                    break

    def _pin(self) -> Iterator[Setting]:
        if self.cuda:
            yield replace(self.best, pin=not self.best.pin)

    def again(self) -> Iterator[Setting]:
        """The best and the user's own once more: the first of all may have met files that no cache held."""
        best = self.best
        if best != self.own:
            yield best
        yield self.own

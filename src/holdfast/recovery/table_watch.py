"""What the tables of a run show while it lives: each finding once for a training, the lowest rank represents all."""

from __future__ import annotations

import time
from collections.abc import Iterator

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.ranks_follower import MachineFollower, RanksFollower, SetupFollower, trained_together
from holdfast.diagnosis.run_follower import RunFollower
from holdfast.signals.many_ranks import pause_after
from holdfast.signals.run_folder import Recording, RunFolder

_RANKS_EVERY = 2.0  # seconds: what concerns all ranks can wait


class TableWatches:
    """One follower for each training of a run, one for all its ranks, and one for the machine."""

    def __init__(self) -> None:
        self._followers: dict[int, RunFollower] = {}
        self._num_recordings = 0
        self._ranks: dict[tuple[int, int], tuple[int, RanksFollower, SetupFollower]] = {}
        self._machine: MachineFollower | None = None
        self._reported: set[tuple[int, str, str]] = set()
        self._next = 0.0

    def look(self, run: RunFolder, *, last: bool = False) -> Iterator[Finding]:
        """What is new since the last look; the `last` one, after the run has ended, is at all that there is."""
        recordings = run.recordings() if run.path.is_dir() else []
        for recording in recordings:
            if recording.part not in self._followers:
                self._followers[recording.part] = RunFollower(recording)
        for follower in self._followers.values():
            yield from follower.end() if last else follower.read()
        if recordings and (last or time.monotonic() >= self._next):
            started = time.thread_time()
            yield from list(self._of_all(run, recordings))
            self._next = time.monotonic() + max(_RANKS_EVERY, pause_after(time.thread_time() - started, len(recordings)))

    def _of_all(self, run: RunFolder, recordings: list[Recording]) -> Iterator[Finding]:
        if len(recordings) != self._num_recordings:  # another rank has begun
            together = trained_together(recordings)
            self._num_recordings = sum(map(len, together.values()))
            for training, ranks in together.items():
                if len(ranks) > 1 and (training not in self._ranks or self._ranks[training][0] != len(ranks)):
                    self._ranks[training] = (len(ranks), RanksFollower(ranks), SetupFollower(ranks))
        for (part, _), (_, follower, setups) in self._ranks.items():
            for finding in (*follower.read(), *setups.read()):
                key = (part, finding.code, str(finding.evidence.get("what")))
                if key not in self._reported:
                    self._reported.add(key)
                    yield finding
        if self._machine is None:
            self._machine = MachineFollower(run, recordings[0])
        yield from self._machine.read()

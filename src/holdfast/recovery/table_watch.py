"""What the tables of a run show while it lives: each finding once for a training, the lowest rank speaks for all."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.run_follower import RunFollower
from holdfast.signals.run_folder import RunFolder


class TableWatches:
    """One follower for each training of a run."""

    def __init__(self) -> None:
        self._followers: dict[int, RunFollower] = {}

    def look(self, run: RunFolder, *, last: bool = False) -> Iterator[Finding]:
        """What is new since the last look; the `last` one, after the run has ended, is at all that there is."""
        for recording in run.recordings() if run.path.is_dir() else ():
            if recording.part not in self._followers:
                self._followers[recording.part] = RunFollower(recording)
        for follower in self._followers.values():
            yield from follower.end() if last else follower.read()

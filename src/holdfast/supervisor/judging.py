"""The thread that judges a run from outside while it lives, and once more when it has ended.

A run that ends after a few steps and within seconds is not judged unless something was reported: loading the detectors takes
more CPU time than such a run itself. `holdfast diagnose` judges any run.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.inside.policy import Policy
from holdfast.probe.niceness import be_nice
from holdfast.signals.many_ranks import MANY_RANKS
from holdfast.signals.pulse import read_pulse
from holdfast.signals.run_folder import Recording, RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.begun import trainings, wait_for_training

if TYPE_CHECKING:
    from holdfast.detectors.finding import Finding
    from holdfast.signals.actions import Action

_EVERY_SECONDS, _HURRIED_SECONDS = 0.2, 0.05
_MANY_STEPS = 8  # between two looks: a judge that acts looks more often, as all that follow the bad one are undone
_LAST_LOOK_SECONDS = 5.0
_FEW_STEPS, _SHORT_SECONDS = 32, 2.0


class Judging:
    """Look at the run a few times a second; a judge that fails is reported once, and the run continues without it."""

    def __init__(self, run: RunFolder, trouble: Trouble, *, hurry: threading.Event) -> None:
        self._run, self._trouble, self._hurry = run, trouble, hurry
        self._heals = allowed_in(run).heals
        self._steps_seen = 0
        self.restart: Callable[[Finding, Action], bool] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="holdfast-judging", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def finish(self) -> None:
        """One last look within a bounded time; leaves early when `hurry` is set."""
        self._stop.set()
        deadline = time.monotonic() + _LAST_LOOK_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline and not self._hurry.is_set():
            self._thread.join(0.05)

    @property
    def busy(self) -> bool:
        """Still at work after `finish` gave up on it."""
        return self._thread.is_alive()

    def _work(self) -> None:
        try:
            if self._heals:
                _get_ready()
            if not wait_for_training(self._run, self._stop, seconds=_SHORT_SECONDS, or_if=self._is_worth_it):
                return
            # first, or on a busy machine the last look comes too late
            judge = make_judge(self._run, self._trouble, self._start_again)
            if not self._heals:  # who acts must not be late: every step until then is undone
                be_nice()
            seconds = _EVERY_SECONDS
            while not self._stop.wait(seconds):
                self._look(judge)
                seconds = self._until_next(seconds)
            self._look(judge, act=False)
        except Exception as error:  # noqa: BLE001 - the training continues without judgement
            self._trouble.step_back("judging the run", error)

    def _start_again(self, finding: Finding, action: Action) -> bool:
        """Only whoever started the training can start it again."""
        return self.restart is not None and self.restart(finding, action)

    def _look(self, judge: Any, *, act: bool = True) -> None:
        try:
            if is_ours(self._run):
                judge.look(act=act)
        except OSError as error:  # a share that was away comes back: the next look may be a good one
            self._trouble.step_back("looking at the run", error)

    def _until_next(self, seconds: float) -> float:
        """Seconds until the next look, after one that came `seconds` after the one before it."""
        steps = self._steps(trainings(self._run)[:MANY_RANKS]) if self._heals else 0
        new, self._steps_seen = steps - self._steps_seen, steps
        if new > _MANY_STEPS:
            return max(_HURRIED_SECONDS, seconds / 2)
        return min(_EVERY_SECONDS, seconds * 2) if new < _MANY_STEPS / 4 else seconds

    def _is_worth_it(self) -> bool:
        """Whether to judge however soon the run ends: a policy acts, something was reported, or there are many steps."""
        recordings = trainings(self._run)
        unknown = _FEW_STEPS if self._stop.is_set() else 0  # a training that has no pulse gets one in a moment, or never
        steps = self._steps(recordings, unknown)
        return bool(recordings) and (self._heals or steps >= _FEW_STEPS or self._run.journal.has_rows())

    @staticmethod
    def _steps(recordings: list[Recording], unknown: int = 0) -> int:
        return max((pulse.steps if (pulse := read_pulse(recording)) else unknown for recording in recordings), default=0)


def is_ours(run: RunFolder) -> bool:
    """Whether this machine judges: the one with the lowest rank, which represents all. Others only share the folder."""
    recordings = run.recordings() if run.path.is_dir() else []
    if not recordings or run.info().get("nodes"):  # `--nodes`: only the first one judges
        return True
    speaks = max(recording for recording in recordings if recording.rank == recordings[0].rank)
    return speaks.info().get("host") in (None, socket.gethostname())


def _get_ready() -> None:
    """Import what a judge needs while the training imports torch: later, on a machine with no core to spare, it takes seconds.

    Only a judge that acts is waited for.
    """
    import holdfast.checkpoints.verify
    import holdfast.recovery.judge
    import holdfast.recovery.order
    import holdfast.supervisor.resume  # noqa: F401


def allowed_in(run: RunFolder) -> Policy:
    """The policy that `run.json` names."""
    info = run.info()
    rules = info.get("rules")
    return Policy(str(info.get("policy") or "observe"), dict(rules) if isinstance(rules, dict) else {})


def make_judge(run: RunFolder, trouble: Trouble, restart: Callable[[Finding, Action], bool] | None = None) -> Any:
    """The judge that the policy of the run calls for. A policy file that cannot be used is told, and nothing is acted on."""
    from holdfast.errors import UsageError
    from holdfast.recovery.judge import Judge
    from holdfast.recovery.order import defaults, load, stopping_early

    allowed = allowed_in(run)
    try:
        policies = load(allowed.name)
    except UsageError as error:
        trouble.step_back(f"using the policy {allowed.name}", error)
        policies, allowed = (), Policy("observe", {})
    if not policies and allowed.heals:
        policies = defaults()
    if policies and isinstance(patience := run.info().get("patience"), int):
        policies = (*policies, *stopping_early(patience)[len(defaults()) :])
    return Judge(run, policies, allowed, restart=restart, on_trouble=trouble.step_back)

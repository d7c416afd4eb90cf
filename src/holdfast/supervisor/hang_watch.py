"""Notices a training that has stopped to move: follows the ranks from outside, and looks at their stacks.

What is found goes into the journal with the stacks beside it. Under `heal` the run is ended by whoever started it, and begun
again from its last clean checkpoint; without that the thread only tells.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.detectors.finding import Finding
from holdfast.detectors.hang import EXCUSED, STOPPED, Limits, Standing, Suspect, code_of, stands, suspects
from holdfast.recovery.patient_journal import PatientJournal
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.progress import Progress

_APART = 0.5  # seconds between the two looks at the stacks
_PATIENT = 5.0  # for the second, with native frames: nobody waits for it at a terminal
_CUT_SECONDS = 5.0  # without a step of any rank, after which their connections are looked at
_LONGER = 3.0  # times as long, after a hang that ended the attempt
_REPORT_STOPPED_AFTER = 3.0  # times the floor


def limits_from(settings: Any) -> Limits | None:
    """The limits that `run.json` or the environment names; None if hangs are not watched for."""
    text = os.environ.get("HOLDFAST_HANG_AFTER") or settings
    if text in ("off", False):
        return None
    try:
        floor = float(text) if text is not None else Limits().floor
        patient = float(os.environ.get("HOLDFAST_HANG_PATIENCE") or 0.0)
    except (TypeError, ValueError):
        return Limits()
    return Limits(floor=floor, patient=patient, on_disk=patient) if floor > 0 else None


@dataclass(slots=True)
class Hang:
    """A hang that was told, until it is over."""

    finding: Finding
    pids: list[int] = field(default_factory=list)
    since: float = 0.0  # seconds of silence when it was told


class HangWatch:
    """Looks a few times a second; `on_hang` is called with what was found and may be acted on."""

    def __init__(
        self,
        run: RunFolder,
        trouble: Trouble,
        *,
        limits: Limits,
        on_hang: Callable[[Finding], None] = lambda _finding: None,
        others: Callable[[], list[Standing]] = list,
    ) -> None:
        """`others` says how ranks of other nodes stand."""
        self._run, self._trouble, self._limits, self._on_hang, self._others = run, trouble, limits, on_hang, others
        self.tick = min(0.5, limits.floor / 5)
        self._progress = Progress(run, self.tick)
        self._journal = PatientJournal(run.journal, trouble.step_back)
        self._hang: Hang | None = None
        self._examine_at = 0.0  # seconds of silence at which the stacks were last looked at
        self._reported: set[str] = set()
        self._cut_off = False  # whether the network was told not to reach some ranks

    def begin_again(self) -> None:
        """Another attempt begins. What was taken for a hang may be a long wait that the script means: give it longer now."""
        self._progress.begin_again()
        if self._hang is not None:
            limits = self._limits  # those that follow from the floor are long enough as they are
            self._limits = replace(limits, floor=_LONGER * limits.floor, patient=limits.patience, on_disk=limits.disk)
        self._hang, self._examine_at = None, 0.0

    def look(self) -> None:
        """See how the ranks stand, and tell a hang."""
        self._journal.catch_up()
        if not os.path.isdir(self._run.path):  # noqa: PTH112 - False for every error; moved or unmounted: nothing is known of it
            return
        standings = self._standings()
        self._look_at_network(standings)
        self._tell_stopped()
        suspected = suspects(standings, self._limits)
        if not suspected:
            if not any(standing.state in STOPPED for standing in standings):  # stopped, or held while its stacks are read
                self._moves_again(standings)
            return
        if self._hang is None and suspected[0].standing.silent >= self._examine_at:
            self._ask_the_stacks(suspected[0], standings)

    def _standings(self) -> list[Standing]:
        here = self._progress.look()
        ranks = {standing.rank for standing in here}
        return [*here, *(other for other in self._others() if other.rank not in ranks)]

    def _look_at_network(self, standings: Sequence[Standing]) -> None:
        """Tell ranks that the network does not reach, long before that is a hang: it may come back, and they train on."""
        silent = min((standing.silent for standing in standings), default=0.0) if len(standings) > 1 else 0.0
        if silent < _CUT_SECONDS or self._hang is not None:
            self._cut_off = self._cut_off and silent > 0
            return
        network = {} if self._cut_off else self._unreached()
        if not network:
            return
        self._cut_off = True
        evidence = {"kind": "network", "say": f"No rank moves.{_not_reached(network)}", "seconds": round(silent, 1), **network}
        step = max((standing.step or 0 for standing in standings), default=0)
        self._tell(Finding("collective-stall", step=step, evidence=evidence), min(network["missing"], default=0))

    def _unreached(self) -> dict[str, Any]:
        from holdfast.probe.stacks.cut_off import cut_off

        return cut_off(self._progress.by_rank)

    def _ask_the_stacks(self, suspect: Suspect, standings: Sequence[Standing]) -> None:
        silent = suspect.standing.silent
        self._examine_at = silent + max(1.0, (silent if suspect.early else suspect.limit) / 2)  # next time, if this is not a hang
        stacks, verdict = self._stacks(standings)
        on_disk = self._wait_for_storage(stacks)
        code = "stopped" if verdict.evidence.get("kind") == "stopped" else verdict.code
        if self._has_moved(suspect) or not stands(suspect, code, self._limits, on_disk=on_disk):
            if not suspect.early and (code in ("paused", "busy", "stopped") or on_disk):
                self._info_once(verdict, suspect)
            return
        kept, network = self._keep(stacks), self._network(verdict)
        standing = suspect.standing
        evidence = {
            **verdict.evidence,
            **network,
            "say": verdict.say + _not_reached(network),
            "seconds": round(standing.silent, 1),
            "limit": round(suspect.limit, 1),
            "longest_step": standing.longest_step,
            "doing": standing.phase,
            "pid": verdict.pid or self._progress.pid_of(standing.rank),
            "where": _where(verdict.frame),
            "stacks": kept,
        }
        shown = {name: value for name, value in evidence.items() if value is not None}
        finding = Finding(code_of(verdict.code), step=standing.step or 0, severity="critical", evidence=shown)
        self._hang = Hang(finding, self._progress.pids, standing.silent)
        try:
            self._tell(finding, standing.rank)
        finally:
            self._on_hang(finding)

    def _has_moved(self, suspect: Suspect) -> bool:
        """Whether something was seen of the rank while its stacks were taken, or it has ended."""
        now = next((standing for standing in self._standings() if standing.rank == suspect.standing.rank), None)
        return now is None or now.silent < suspect.standing.silent

    def _tell(self, finding: Finding, rank: int) -> None:
        from holdfast.diagnosis.diagnosis import diagnose

        self._journal.write("finding", **finding.as_row(), rank=rank)
        self._journal.write("diagnosis", **diagnose([finding], around=self._earlier_rows()).as_row())

    def _earlier_rows(self) -> list[dict[str, Any]]:
        try:
            return list(self._run.journal)
        except OSError as error:
            self._trouble.step_back("reading the journal", error)
            return []

    def _moves_again(self, standings: Sequence[Standing]) -> None:
        self._examine_at = 0.0
        hang, self._hang = self._hang, None
        if hang is not None and standings:
            evidence = {"say": "it moves again", "after": round(hang.since, 1)}
            self._journal.write("finding", code=hang.finding.code, severity="info", step=hang.finding.step, evidence=evidence)

    def _tell_stopped(self) -> None:
        stopped = self._progress.stopped_for()
        if stopped is None:
            self._reported.discard("stopped")
        elif stopped[1] > _REPORT_STOPPED_AFTER * self._limits.floor and "stopped" not in self._reported:
            self._reported.add("stopped")
            say = f"process {stopped[0]} is stopped; resume it with kill -CONT {stopped[0]}"
            self._write_info(say, None)

    def _info_once(self, verdict: Any, suspect: Suspect) -> None:
        key = f"{verdict.code} {verdict.pid} {_where(verdict.frame)} after step {suspect.standing.step}"
        if key not in self._reported:
            self._reported.add(key)
            self._write_info(verdict.say, suspect.standing.step)

    def _write_info(self, say: str, step: int | None) -> None:
        self._journal.write("finding", code="hang", severity="info", step=step, evidence={"say": say})

    # The stacks

    def _stacks(self, standings: Sequence[Standing]) -> tuple[list[Any], Any]:
        from holdfast.probe.stacks.everywhere import take_everywhere
        from holdfast.probe.stacks.sentence import Verdict, explain

        try:
            first, _ = take_everywhere(self._run, native=False)
            time.sleep(_APART)
            second, _ = take_everywhere(self._run, after=first, seconds=_PATIENT)
            return second, explain(first, again=second, state=[_as_progress(standing) for standing in standings])
        except Exception as error:  # noqa: BLE001 - a hang is told without its stacks, too
            self._trouble.step_back("taking stacks", error)
            return [], Verdict("unseen", "no step, no batch, no error; its stacks could not be taken")

    def _network(self, verdict: Any) -> dict[str, Any]:
        return self._unreached() if verdict.code == "collective-stall" else {}

    def _wait_for_storage(self, stacks: list[Any]) -> bool:
        from holdfast.probe.stacks.far_files import waits_for_storage

        return any(waits_for_storage(stack) for stack in stacks)

    def _keep(self, stacks: list[Any]) -> str | None:
        from holdfast.probe.stacks.keep import keep_stacks

        try:
            return str(keep_stacks(self._run, stacks, when=time.time()).relative_to(self._run.path)) if stacks else None
        except Exception as error:  # noqa: BLE001 - a full disk
            self._trouble.step_back("keeping stacks", error)
            return None


def _as_progress(standing: Standing) -> Any:
    """The same for whoever words the stacks."""
    from holdfast.probe.stacks.frames import RankProgress

    doing = standing.phase if standing.phase in (*EXCUSED, "paused") else None
    return RankProgress(
        rank=standing.rank,
        step=standing.step,
        before=standing.step,
        seconds=standing.silent,
        usual=standing.longest_step,
        doing=doing,
        apart=_APART,
    )


def _not_reached(network: Mapping[str, Any]) -> str:
    if not network:
        return ""
    ranks = ", ".join(map(str, network["missing"]))
    who = f"rank{'s' if len(network['missing']) > 1 else ''} {ranks} at {network['cut_off']}" if ranks else network["cut_off"]
    return f" The network does not reach {who}: packets are sent again and not acknowledged."


def _where(frame: Any) -> str | None:
    return None if frame is None else f"{frame.file}:{frame.line} in {frame.func}"

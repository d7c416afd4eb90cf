"""After a command has ended badly: what its run folder tells about the end, as a finding, a diagnosis, a file and a few lines."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.endings import Ended, error_of, finding_of, trend, words_of
from holdfast.diagnosis.known_texts import ERROR
from holdfast.signals.nodes import NodeState
from holdfast.signals.run_folder import Recording, RunFolder
from holdfast.supervisor.attempts import under_way
from holdfast.supervisor.damaged import damage_found_loading
from holdfast.supervisor.train_log import end_of_log, last_lines, root_cause
from holdfast.units import duration, size

if TYPE_CHECKING:
    from holdfast.diagnosis.error_search import Answer
    from holdfast.diagnosis.ranking import Ranked

_LINE = 400
_SAMPLES = 600  # of the processes: the last minutes
_STACK = 6000  # characters
_SHOWN = 2
_IMPORTS = ("ModuleNotFoundError", "ImportError")
_PLAIN = ("process-died", "script-error")  # findings that say no more than the error itself


@dataclass(frozen=True, slots=True, kw_only=True)
class PostMortem:
    """What is known about the end of one attempt."""

    ended: Ended
    finding: Finding
    causes: tuple[str, ...] = ()
    ranked: tuple[Ranked, ...] = ()  # those that are likely enough to be named, as `holdfast diagnose` names them
    loss: float | None = None
    memory: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    attempt: int = 1
    steps: int = 0  # made in this attempt
    trained: bool = False

    @property
    def error(self) -> str | None:
        """The class of the error that ended it."""
        return error_of(self.ended)[0]

    @property
    def is_worth_reporting(self) -> bool:
        """Whether the terminal hears of it: a training, a Python error, or an error that is known. Else the command speaks."""
        return self.trained or self.error is not None or self.finding.code not in _PLAIN

    def as_row(self) -> dict[str, Any]:
        """For `post-mortem.json`."""
        return {
            "time": round(time.time(), 3),
            "attempt": self.attempt,
            "exit_code": self.ended.exit_code,
            "ended": words_of(self.ended),
            "finding": self.finding.as_row(),
            "causes": list(self.causes),
            "step": self.ended.step,
            "steps": self.steps,
            "loss": self.loss,
            "memory": self.memory,
            "open_files": self.ended.files,
            "stack": self.ended.stack,
            "last_lines": self.lines,
        }


def examine(
    run: RunFolder,
    *,
    exit_code: int,
    since: float,
    log_from: int = 0,
    attempt: int = 1,
    killed_for_memory: int | None = None,
    files: tuple[int, int] | None = None,
    hang: Finding | None = None,
    workers: int | None = None,
    elsewhere: NodeState | None = None,
    waits: Mapping[str, Any] | None = None,
) -> PostMortem:
    """Read what an attempt that began at `since` has left behind; its part of the log begins at byte `log_from`.

    `elsewhere` is the node where it began, if that is another one; `waits` what other ranks did then.
    """
    from holdfast.diagnosis.diagnosis import diagnose
    from holdfast.diagnosis.ranking import rank
    from holdfast.signals.curves import Curves

    text = elsewhere.log if elsewhere is not None else end_of_log(run.path / "train.log", log_from)
    recordings = list(_recordings_since(run, since))
    step, steps, loss = _last_step(recordings)
    stack = _crash_stack(run, since)
    ended = Ended(
        exit_code=exit_code, step=step, search=_errors_in(text), killed_for_memory=killed_for_memory, files=files, stack=stack
    )
    memory = _memory(run, since) or _memory_of_steps(recordings)
    grown = memory[0] if memory else {}
    ranks = len({recording.rank for recording in recordings})
    more: dict[str, Any] = {"ranks": ranks} if ranks > 1 else {}
    more |= {"loss": loss, "memory_first": grown.get("first"), "memory_last": grown.get("last"), "attempt": attempt}
    more |= {"machine_memory": _machine_memory(), "workers": workers, **(waits or {})}
    if elsewhere is not None:
        more |= {"node": elsewhere.node, "host": elsewhere.host}
    if ranks > 1 and (root := root_cause(text)) is not None:
        more["rank"] = root[0]
    early: dict[str, Any] = {"attempt": attempt, "steps": 0}
    if (error_of(ended)[0] or "") in _IMPORTS:
        early |= {"python": run.info().get("python"), "fix": _python_fix(run, error_of(ended)[1])}
    finding = hang or damage_found_loading(run, finding_of(ended, **(more if recordings else early)), since=since)
    rows = list(run.journal)
    causes = diagnose([finding], around=rows).causes
    named = tuple(cause for cause in rank([finding], Curves(run.name, ()), around=rows, name=run.target) if cause.stated)
    lines = [line[:_LINE] for line in last_lines(text)]
    return PostMortem(
        ended=ended, finding=finding, causes=causes, ranked=named, loss=loss, memory=memory, lines=lines, attempt=attempt,
        steps=steps, trained=bool(recordings),
    )  # fmt: skip


def caught_error(run: RunFolder, *, since: float, log_from: int = 0) -> Finding | None:
    """A known error among the last lines of a command that trained and yet ended with 0: the script caught it, and trained no
    more.
    """
    lines = last_lines(end_of_log(run.path / "train.log", log_from))
    known = [match for match in _errors_in("\n".join(lines)).matches if match.text.kind == ERROR]
    step, steps, _ = _last_step(list(_recordings_since(run, since)))
    if not known or not steps:
        return None
    text, ended = known[0].text, "the script printed an error and finished as if nothing had happened,"
    evidence = {"exit_code": 0, "ended": ended, "error": known[0].line[:_LINE], "known_text": text.name, "steps": steps}
    return Finding(text.page, step=step or 0, severity="warning", evidence=evidence)


def keep(run: RunFolder, post_mortem: PostMortem) -> None:
    """Into the journal and the two files. A hang was told when it was found. A disk that refuses is ignored."""
    from holdfast.diagnosis.diagnosis import diagnose

    with contextlib.suppress(OSError):
        if "limit" not in post_mortem.finding.evidence:
            run.journal.write("finding", **post_mortem.finding.as_row())
            run.journal.write("diagnosis", **diagnose([post_mortem.finding], around=list(run.journal)).as_row())
        text = json.dumps(post_mortem.as_row(), indent=1, ensure_ascii=False, default=str)
        (run.path / "post-mortem.json").write_text(text + "\n", encoding="utf-8", errors="replace")
        (run.path / "post-mortem.txt").write_text("\n".join(report(run, post_mortem)) + "\n", encoding="utf-8", errors="replace")


def summary(run: RunFolder, post_mortem: PostMortem) -> list[str]:
    """The few lines for the terminal."""
    if post_mortem.ended.step is None and is_complete(post_mortem.finding):
        fix = post_mortem.finding.evidence.get("fix")
        return [f"holdfast: {failed_early(post_mortem.finding)}", *([f"  fix: {fix}"] if fix else []), f"  more: {_more(run)}"]
    at = " before the first step" if post_mortem.ended.step is None else f" after step {post_mortem.ended.step:,}"
    evidence = post_mortem.finding.evidence
    who = f"rank {evidence['rank']} " if "rank" in evidence else ""
    who += f"on {evidence['host']} " if "host" in evidence else ""
    head = f"holdfast: {who}{words_of(post_mortem.ended)}{at} (exit {post_mortem.ended.exit_code}) [{post_mortem.finding.code}]"
    if "limit" in post_mortem.finding.evidence:
        head = f"holdfast: {post_mortem.finding.code}{at}: {post_mortem.finding.evidence.get('say')}"
    facts = [f"last loss {post_mortem.loss:.4g}"] if post_mortem.loss is not None else []
    facts += [_memory_words(row) for row in post_mortem.memory[:1] if row["last"] > 1.2 * row["first"] and row["seconds"] > 1]
    if "open_files" in post_mortem.finding.evidence:
        facts.append("{} of {} open files".format(*post_mortem.ended.files or (0, 0)))
    lines = [head, *([f"  {' · '.join(facts)}"] if facts else [])]
    for place, ranked in enumerate(post_mortem.ranked[:_SHOWN]):
        lines.append(f"  {f'or, {ranked.stated}' if place else f'{ranked.stated} cause'}: {ranked.cause.because}")
        lines += [f"    fix: {fix.text}" for fix in ranked.fixes[:1]]
    return [*lines, f"  more: {_more(run)}"]


def is_complete(finding: Finding) -> bool:
    """Whether the error itself says why nothing has begun: causes of a training that broke are none of it."""
    return finding.code in _PLAIN or str(finding.evidence.get("error")).startswith(_IMPORTS[0])


def failed_early(finding: Finding) -> str:
    """What a run that never made a step ended with."""
    evidence = finding.evidence
    why = evidence.get("error") or evidence["ended"]
    return f"failed before the first step: {why}" + (f" (python = {evidence['python']})" if evidence.get("python") else "")


def _python_fix(run: RunFolder, error: str | None) -> str | None:
    """For a Python without torch: the command with the one that Holdfast runs in, which has it."""
    info = run.info()
    if "'torch'" not in str(error) or info.get("python") in (None, sys.executable):
        return None
    again = shlex.join([sys.executable, *map(str, info.get("command", [])[1:])])
    return f"this Python has no torch; Holdfast's has: holdfast run -- {again}"


def _more(run: RunFolder) -> str:
    path = run.path / "post-mortem.txt"
    with contextlib.suppress(ValueError, OSError):
        path = path.relative_to(Path.cwd().resolve())
    return f"holdfast diagnose {run.target}; {shlex.quote(str(path))}"


def report(run: RunFolder, post_mortem: PostMortem) -> list[str]:
    """The whole of it, for a person."""
    lines = [*summary(run, post_mortem)[:-1], "", "memory of the processes (first, largest, last):"]
    lines += [f"  {_memory_words(row)}   {row['process']}" for row in post_mortem.memory[:10]] or ["  not sampled"]
    if post_mortem.ended.stack:
        lines += ["", "stack when it crashed:", *(f"  {line}" for line in post_mortem.ended.stack.splitlines())]
    return [*lines, "", "last lines of the log:", *(f"  {line}" for line in post_mortem.lines)]


def _memory_words(row: dict[str, Any]) -> str:
    return f"memory {size(row['first'])} → {size(row['last'])} in {duration(row['seconds'])}"


# What is read


def _errors_in(text: str) -> Answer:
    from holdfast.diagnosis.error_search import search_text

    return search_text(text)


def _recordings_since(run: RunFolder, since: float) -> Iterator[Recording]:
    with contextlib.suppress(OSError):
        for recording in run.recordings():
            started = recording.info().get("started")
            if isinstance(started, (int, float)) and started >= since - 1.0:
                yield recording


def _last_step(recordings: list[Recording]) -> tuple[int | None, int, float | None]:
    """The newest step over the ranks, how many were made, and the last loss that was finite or not.

    Of several trainings of a rank, that of the one which was under way.
    """
    from holdfast.probe.rows import last_rows
    from holdfast.signals.pulse import read_pulse
    from holdfast.signals.view import measured

    step: int | None = None
    steps, loss = 0, None
    for recording in under_way(recordings):
        rows = last_rows(recording.path, "steps", ("step", "loss"), 1 << 16)
        if len(rows["step"]):
            pulse = read_pulse(recording)
            newest = max(int(rows["step"][-1]), pulse.steps - 1 if pulse is not None else -1)
            step = newest if step is None else max(step, newest)
            steps = max(steps, newest - int(rows["step"][0]) + 1)
            losses = rows["loss"][measured(rows["loss"])]
            loss = float(losses[-1]) if loss is None and len(losses) else loss
    return step, steps, loss


def _memory(run: RunFolder, since: float) -> list[dict[str, Any]]:
    from holdfast.probe.rows import last_rows

    if not (run.path / "host" / "processes").is_dir():
        return []
    rows = last_rows(run.path / "host", "processes", ("time", "pid", "command", "rss"), _SAMPLES)
    sizes: dict[str, list[tuple[float, float]]] = {}
    for at, pid, command, rss in zip(*(rows[name] for name in ("time", "pid", "command", "rss")), strict=True):
        if at >= since and rss > 0:
            sizes.setdefault(f"{pid} {str(command)[:80]}", []).append((float(at), float(rss)))
    return trend(sizes)


def _memory_of_steps(recordings: list[Recording]) -> list[dict[str, Any]]:
    """For a run that ended before its processes were sampled: what the training itself has noted at its steps."""
    from holdfast.probe.rows import last_rows

    sizes: dict[str, list[tuple[float, float]]] = {}
    for recording in recordings:
        rows = last_rows(recording.path, "steps", ("time", "host_rss"), 1 << 16)
        pairs = zip(rows["time"].tolist(), rows["host_rss"].tolist(), strict=True)
        sizes[f"rank {recording.rank}"] = [(float(at), float(rss)) for at, rss in pairs if rss > 0]
    return trend(sizes)


def _machine_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def _crash_stack(run: RunFolder, since: float) -> str | None:
    """What faulthandler wrote in a process that crashed."""
    with contextlib.suppress(OSError):
        files = [path for path in (run.path / "faults").iterdir() if path.stat().st_mtime >= since and path.stat().st_size]
        if files:
            return max(files, key=lambda path: path.stat().st_mtime).read_text(errors="replace")[:_STACK]
    return None

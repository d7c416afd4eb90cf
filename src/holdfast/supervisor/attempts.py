"""What an attempt has left in the run folder: its loader's workers, whether it was stopped on purpose, its learning rate."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.signals.run_folder import Recording, RunFolder

_ROWS = 10_000  # far more than are undone


def under_way(recordings: Iterable[Recording]) -> list[Recording]:
    """Of each rank, the one of its trainings that made the newest step: a script may train several models in turns."""
    newest: dict[int, tuple[float, Recording]] = {}
    for recording in recordings:
        at = _newest_step_at(recording)
        if recording.rank not in newest or at >= newest[recording.rank][0]:
            newest[recording.rank] = at, recording
    return [recording for _, recording in newest.values()]


def _newest_step_at(recording: Recording) -> float:
    from holdfast.probe.rows import last_rows

    times = last_rows(recording.path, "steps", ("time",), 1)["time"]
    return float(times[-1]) if len(times) else -1.0


def workers_of(run: RunFolder) -> int | None:
    """How many workers the newest loader had; None if that is not known."""
    from holdfast.probe.rows import last_rows

    recordings = run.recordings()
    if not recordings:
        return None
    rows = last_rows(max(recordings, key=lambda recording: recording.part).path, "loader", ("worker",), 256)
    return int(rows["worker"].max()) + 1 if len(rows["worker"]) else None


def stopped(run: RunFolder, since: float) -> bool:
    """Whether a policy has ended the training on purpose: it is over, and has said why."""
    rows = (row for row in run.journal if row.get("kind") == "action" and row.get("action") == "stop")
    return any(row.get("state") == "done" and float(row.get("time") or 0) >= since for row in rows)


def lowered(run: RunFolder, since: float) -> float:
    """By how much the learning rate was lowered for good in an attempt: the factor is Holdfast's, and in no checkpoint."""
    factor, seen = 1.0, set()
    for row in run.journal:
        if row.get("kind") == "action" and row.get("state") == "done" and float(row.get("time") or 0) >= since:
            settings = row.get("settings") or {}
            lasting = row.get("action") in ("lower-lr", "roll-back") and not settings.get("regain_steps")
            if lasting and row.get("number") not in seen:
                seen.add(row.get("number"))
                factor *= float(settings.get("factor", settings.get("lr_factor", 1.0)))
    return factor


def highest_lr(run: RunFolder, since: int, before: int) -> float | None:
    """The highest learning rate between two steps of the newest attempt; None if it is not known."""
    from holdfast.probe.rows import last_rows

    (newest, *_) = under_way(run.recordings())
    rows = last_rows(newest.path, "steps", ("step", "lr"), _ROWS)
    rates = rows["lr"][(rows["step"] >= since) & (rows["step"] < before)]
    return float(rates.max()) if len(rates) else None

"""Is the clock right, does it run evenly, and does the file system's clock agree with it?

A wrong year breaks every encrypted connection; a skew makes caches and builds take old files for new ones.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from holdfast.environment.check import Check, Fix, Verdict, ok, problem, together, warning
from holdfast.environment.machine import Machine

_SKEW, _JUMP = 5.0, 0.5  # NFS servers with their clocks in order stay under 2 s
_WRITTEN = 1_735_689_600.0  # the first of January 2025
_LAST_YEAR = 15 * 365.0 * 86_400
_SET = Fix("synchronise the clock", ("sudo timedatectl set-ntp true",))


def ask(machine: Machine) -> Verdict:
    """The date, the pace over a second, and a new file's date."""
    verdicts = [_date(), _pace()]
    skew = _skew(machine.plans.folder)
    if skew is not None:
        verdicts.append(_agrees(skew))
    worst = together(verdicts)
    return worst if worst.level != "ok" else ok("the clock and the file system's dates agree", **worst.evidence)


def _date() -> Verdict:
    """This file was written when the package was installed, so now cannot be long before that.

    Some installers give every file the same old date; then the year in which this was written counts.
    """
    now, written = time.time(), max(Path(__file__).stat().st_mtime, _WRITTEN)
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    if now < written - 86_400:
        return problem(f"the clock says {date}, before this package was installed", _SET, date=date)
    if now > written + _LAST_YEAR:
        return problem(f"the clock says {date}, 15 years after this package was installed", _SET, date=date)
    return ok(date, date=date)


def _pace(seconds: float = 1.0) -> Verdict:
    """The wall clock against the one that nobody sets."""
    wall, steady = time.time(), time.monotonic()
    time.sleep(seconds)
    off = (time.time() - wall) - (time.monotonic() - steady)
    if abs(off) > _JUMP:
        return warning(
            f"the clock jumped by {off:+.1f} s within a second: times and rates of a run will be wrong", _SET, jump=off
        )
    return ok("even", jump=round(off, 4))


def _agrees(skew: float) -> Verdict:
    if abs(skew) > _SKEW:
        fix = Fix("synchronise the clock of this machine or of the file server", _SET.commands)
        return warning(f"new files are dated {skew:+.0f} s off this machine's clock", fix, skew=round(skew, 2))
    return ok("same", skew=round(skew, 2))


def _skew(folder: Path) -> float | None:
    """How far the date of a new file is from now."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".holdfast-doctor-") as file:
            before = time.time()
            file.write(b"x")
            file.flush()
            made = Path(file.name).stat().st_mtime
            after = time.time()
    except OSError:
        return None
    return made - after if made > after else min(0.0, made - before)


CHECK = Check(name="clock", asks="date, pace, file dates", ask=ask, waits=True)

"""Notifications: a command gets the event as JSON on its standard input, an address as the body of a POST."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, ClassVar
from urllib.parse import urlsplit

from holdfast.errors import CannotSend
from holdfast.integrations.tracker import End, Notice, Tracker

_TARGETS = "HOLDFAST_NOTIFY"
_SECONDS = 10.0
_TRIES = 3


class Notify(Tracker):
    """Tells every target of critical findings, restarts and the end; one that does not answer is given up after three tries."""

    takes_metrics = False
    address = "notifications"
    tries: ClassVar[Counter[tuple[str, Notice]]] = Counter()  # of this process: those that were told are not told again

    def notice(self, notice: Notice) -> None:
        """Tell the targets that have not got it yet, all at the same time."""
        if notice.event == "finding" and notice.severity != "critical":
            return
        event = {**asdict(notice), "run": self.run.name, "folder": str(self.run.path), "host": os.uname().nodename}
        event |= {"exit_code": self.run.info().get("exit_code")} if notice.event == "end" else {}
        targets = [line for line in os.environ.get(_TARGETS, "").splitlines() if line.strip()]
        waiting = [target for target in targets if self.tries[target, notice] < _TRIES]
        with ThreadPoolExecutor(len(waiting) or 1) as pool:
            reasons = dict(zip(waiting, pool.map(lambda target: tell(target, event), waiting), strict=True))
        for target, reason in reasons.items():
            self.tries[target, notice] += 1 if reason else _TRIES
        if wrong := "; ".join(f"{shown(target)}: {reason}" for target, reason in reasons.items() if reason):
            raise CannotSend(f"no notification: {wrong}", fix="check the command or address of --notify")

    def finish(self, end: End) -> None:
        """Tell how it ended."""
        self.notice(end.notice)


def tell(target: str, event: dict[str, Any]) -> str | None:
    """Tell one target; why it was not told, or None."""
    return _post(target, event) if is_address(target) else _call(target, event)


def is_address(target: str) -> bool:
    """Whether a target is a URL; anything else is a command."""
    return target.startswith(("http://", "https://"))


def shown(target: str) -> str:
    """The target without what may be a secret."""
    return f"{urlsplit(target).scheme}://{urlsplit(target).hostname}/…" if is_address(target) else target.split()[0]


def _post(url: str, event: dict[str, Any]) -> str | None:
    request = urllib.request.Request(url, json.dumps(event).encode(), {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        return f"status {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def _call(command: str, event: dict[str, Any]) -> str | None:
    variables = {f"HOLDFAST_EVENT_{name.upper()}": str(value) for name, value in event.items() if value is not None}
    environment = {**os.environ, "HOLDFAST_EVENT": event["event"], **variables}
    text = json.dumps(event).encode()
    try:
        done = subprocess.run(
            command, shell=True, input=text, env=environment, capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no end within {_SECONDS:.0f} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
    errors = done.stderr.decode(errors="replace").strip().splitlines()
    return f"exit {done.returncode}{f': {errors[-1]}' if errors else ''}" if done.returncode else None


KIND = Notify

"""Will Weights & Biases take what a run logs: is there a key, is it offline, is its server reached? The key is never shown."""

from __future__ import annotations

import contextlib
import importlib.util
import netrc
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.environment.check import Check, Fix, Verdict, note, ok, skipped, warning
from holdfast.environment.machine import Machine
from holdfast.environment.reach import why_unreachable, without_secrets

_DEFAULT = "https://api.wandb.ai"
_SECONDS, _SHORTEST = 5.0, 40
_OFFLINE = Fix("log to files and upload them later", ("export WANDB_MODE=offline", "wandb sync wandb/offline-run-*"))
_LOGIN = Fix("give it the key of your account", ("wandb login",))


def ask(machine: Machine, environment: Mapping[str, str] = os.environ, home: Path | None = None) -> Verdict:
    """Mode first: who logs to files needs neither key nor server."""
    named = [name for name in environment if name.startswith("WANDB_")]
    if importlib.util.find_spec("wandb") is None and not named:
        return skipped("Weights & Biases is not used here")
    mode = environment.get("WANDB_MODE", "").lower() or _mode_of(machine.plans.folder)
    if mode in ("offline", "dryrun"):
        return note(
            "offline: runs stay in files until they are uploaded",
            Fix("send them", ("wandb sync wandb/offline-run-*",)),
            mode=mode,
        )
    if mode == "disabled" or environment.get("WANDB_DISABLED", "").lower() in ("true", "1"):
        return note("disabled: nothing is logged (WANDB_MODE or WANDB_DISABLED)", mode="disabled")
    base = environment.get("WANDB_BASE_URL", _DEFAULT)
    key = environment.get("WANDB_API_KEY") or _key_in_netrc(base, home or Path.home())
    facts = {"server": without_secrets(base), "key": "there" if key else "missing", "mode": mode or "online"}
    if not key and not named:
        return note("installed, but has no key", _LOGIN, **facts)
    if not key:
        return warning("no key: a run asks for one and stops without a terminal", _LOGIN, _OFFLINE, **facts)
    if len(key.strip()) < _SHORTEST:
        return warning(f"the key has {len(key.strip())} characters, {_SHORTEST} or more are expected", _LOGIN, **facts)
    reason = why_unreachable(base, _SECONDS)
    if reason is not None:
        return warning(f"{facts['server']} cannot be reached: {reason}; runs wait or lose their logs", _OFFLINE, **facts)
    return ok(f"key found, {facts['server']} can be reached", **facts)


def _mode_of(folder: Path) -> str:
    """What `wandb offline` left in this folder."""
    with contextlib.suppress(OSError):
        match = re.search(r"^mode\s*=\s*(\w+)", (folder / "wandb" / "settings").read_text(), re.MULTILINE)
        return match[1].lower() if match else ""
    return ""


def _key_in_netrc(base: str, home: Path) -> str | None:
    host = urlsplit(base).hostname or ""
    for name in (".netrc", "_netrc"):
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            login = netrc.netrc(str(home / name)).authenticators(host)
            if login and login[2]:
                return login[2]
    return None


CHECK = Check(name="wandb", asks="Weights & Biases accepts logs", ask=ask, seconds=15.0, waits=True)

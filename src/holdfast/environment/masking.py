"""Takes what must not be shown out of a text: keys, tokens, passwords, names of users and of this machine."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|SESSION|DSN|WEBHOOK|PRIVATE", re.IGNORECASE)
_PATTERNS = (
    (re.compile(r"(?<=://)[^\s/@]+@"), "<login>@"),  # user and password in an address
    (re.compile(r"(?i)\b(?:bearer|basic)\s+[\w.~+/=-]{8,}"), "<token>"),
    (re.compile(r"\beyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*"), "<token>"),  # a JSON web token
    (re.compile(r"\b(?:hf|gh[pousr]|github_pat|glpat|xox[abprs]|npm|pypi|sk|pk|rk|wandb|dckr_pat)[_-][\w-]{16,}"), "<token>"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), "<key>"),
    (re.compile(r"\bAIza[\w-]{30,}"), "<key>"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), "<key>"),
    (re.compile(r"(?i)([?&;\s](?:[\w-]*(?:key|token|secret|password|passwd|pwd|sig|signature)))=[^\s&;,'\"]+"), r"\1=<hidden>"),
    (re.compile(r"(?i)(--?[\w-]*(?:key|token|secret|password|passwd))[ =]+[^\s,'\"]+"), r"\1 <hidden>"),
    (re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.-]*[a-z]{2,}\b", re.IGNORECASE), "<address>"),
    (re.compile(r"(?<![\w/.-])[0-9a-f]{32,}(?![\w.-])", re.IGNORECASE), "<key>"),
    (re.compile(r"(?<=/home/)[^/\s:'\"]+|(?<=/Users/)[^/\s:'\"]+|(?<=\\Users\\)[^\\\s:'\"]+"), "<user>"),
)  # fmt: skip
_COMMON = {"root", "user", "ubuntu", "admin", "jovyan", "localhost", "vm", "linux", "python", "torch", "runner"}


def secret(name: str) -> bool:
    """Whether a variable of this name may hold a secret."""
    return _SECRET_NAME.search(name) is not None


def mask(text: str, environment: Mapping[str, str] = os.environ, names: Mapping[str, str] | None = None) -> str:
    """The text without them. `names` are words to be replaced and by what; those of this user and machine if not given."""
    for name, value in environment.items():
        if secret(name) and len(value) >= 6:
            text = text.replace(value, "<hidden>")
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    for word, instead in (own_names() if names is None else names).items():
        text = re.sub(rf"(?<![\w]){re.escape(word)}(?![\w])", instead, text)
    return text


def own_names() -> dict[str, str]:
    """This user's name, home and machine, but not such names as everybody's."""
    home, host = str(Path.home()), socket.gethostname()
    names = {home: "~"} if home not in ("/", "/root") else {}
    secrets = ((_user(), "<user>"), (host, "<host>"), (host.partition(".")[0], "<host>"))
    return names | {word: instead for word, instead in secrets if len(word) >= 3 and word.lower() not in _COMMON}


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""

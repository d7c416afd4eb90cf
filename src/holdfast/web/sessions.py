"""A browser's session: a cookie that says whose token it stands for, signed with a key that only this user can read.

The key outlives the server, so that an open page continues after a restart. A token that is taken away ends its sessions.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Mapping, Sequence

from holdfast.probe.serve.tokens import Token
from holdfast.signals.registry import runtime_folder

_KEY_FILE = "session.key"
_KEY_BYTES = 32
SECONDS = 14 * 24 * 3600


class Sessions:
    """Makes and checks the cookies of one server."""

    def __init__(self, tokens: Sequence[Token], own: Token, port: int) -> None:
        self._tokens, self._own, self._port, self._key = tokens, own, port, _key()
        self.cookie = f"holdfast-{port}"  # browsers do not tell ports apart

    def new(self, token: Token) -> str:
        """The value of a cookie that stands for this token."""
        text = f"{self._id(token)}.{int(time.time()) + SECONDS}"
        return f"{text}.{self._signature(text)}"

    def token(self, cookies: Mapping[str, str]) -> Token | None:
        """The token that a browser's cookie stands for, if it is valid."""
        text, _, signature = cookies.get(self.cookie, "").rpartition(".")
        if not text or not hmac.compare_digest(signature.encode(), self._signature(text).encode()):
            return None
        whose, _, until = text.partition(".")
        if not until.isdecimal() or int(until) < time.time():
            return None
        return next((token for token in self._tokens if self._id(token) == whose), None)

    def _id(self, token: Token) -> str:
        """What tells tokens apart without telling them; this user's own changes with every start, and its sessions stay."""
        return "own" if token is self._own else hashlib.sha256(b"session " + token.text.encode()).hexdigest()[:24]

    def _signature(self, text: str) -> str:
        return hmac.new(self._key, f"{self._port} {text}".encode(), hashlib.sha256).hexdigest()


def _key() -> bytes:
    """The key of this user on this machine, made at the first use."""
    path = runtime_folder() / _KEY_FILE
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(secrets.token_bytes(_KEY_BYTES))
    status = path.stat()
    key = path.read_bytes()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or len(key) != _KEY_BYTES:
        return secrets.token_bytes(_KEY_BYTES)  # not to be trusted: sessions end with this server
    return key

"""Who may ask a server: tokens, in a file that nobody else can read, or in the environment.

A file has one token a line, with a name before it if it has one: `alice hf_…`. A token that begins with `ro_` may only read.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import StorageError, UsageError
from holdfast.signals.registry import runtime_folder

READ_ONLY = "ro_"
_FULL = "hf_"
_SHORTEST = 16
_NEW = "make one: holdfast serve --new-token FILE"


@dataclass(frozen=True, slots=True)
class Token:
    """A token and whose it is; `read_only` if it may change nothing."""

    name: str
    text: str
    read_only: bool

    def __repr__(self) -> str:
        return f"Token({self.name})"  # the text must not get into a log


def make(text: str, name: str = "") -> Token:
    """A token from its text; one without a name is known by a few digits that do not tell it."""
    if len(text) < _SHORTEST or not text.isascii() or not text.isprintable():
        raise UsageError(f"a token needs at least {_SHORTEST} plain characters.", fix=_NEW)
    known_as = name or f"token {hashlib.sha256(text.encode()).hexdigest()[:4]}"
    return Token(known_as, text, text.startswith(READ_ONLY))


def find(text: str, tokens: Sequence[Token]) -> Token | None:
    """The token that was given. All are compared, each in constant time: how long it takes tells nothing."""
    match = None
    digest = hashlib.sha256(text.encode(errors="replace")).digest()
    for token in tokens:
        if hmac.compare_digest(digest, hashlib.sha256(token.text.encode()).digest()):
            match = token
    return match


def read_file(path: Path) -> list[Token]:
    """The tokens in a file; refused if anybody else could read it."""
    try:
        with path.open(encoding="utf-8") as file:
            _check_private(path, os.fstat(file.fileno()))
            lines = [line.split() for line in file if line.strip() and not line.lstrip().startswith("#")]
    except FileNotFoundError:
        raise UsageError(f"there is no token file {path}.", fix=f"holdfast serve --new-token {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} cannot be read: {error}.", fix=_NEW) from None
    if not lines or any(len(fields) > 2 for fields in lines):
        raise UsageError(f"{path} is not a token file: each line is a token, or a name and a token.", fix=_NEW)
    return [make(fields[-1], fields[0] if len(fields) == 2 else "") for fields in lines]


def given_tokens(file: Path | None = None) -> list[Token]:
    """Those of a file, else those that the environment names: HOLDFAST_TOKEN, HOLDFAST_TOKEN_FILE."""
    if file is not None:
        return read_file(file)
    if text := os.environ.get("HOLDFAST_TOKEN"):
        return [make(text.strip())]
    if name := os.environ.get("HOLDFAST_TOKEN_FILE"):
        return read_file(Path(name).expanduser())
    return []


def add_to_file(path: Path, *, name: str = "", read_only: bool = False) -> Token:
    """Make a token and write it into the file, which only its owner can read; those that are in it stay."""
    if name and (len(name.split()) != 1 or name.startswith("#")):
        raise UsageError(f"{name!r} cannot be the name of a token.", fix="use one word: --token-name alice")
    token = make((READ_ONLY if read_only else _FULL) + secrets.token_urlsafe(32), name)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "a", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            _check_private(path, os.fstat(descriptor))
            file.write(f"{name} {token.text}\n" if name else f"{token.text}\n")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}.", fix="name a file in a folder of your own") from None
    return token


def _check_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (os.getuid(), 0) or not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path} belongs to another user, or is not a file.", fix=_NEW)
    if status.st_mode & 0o077:
        raise UsageError(f"other users can read {path} and use its tokens.", fix=f"chmod 600 {path}")


def local_file(port: int) -> Path:
    """Where a server leaves a token for its own user on the same machine."""
    return runtime_folder() / f"serve-{port}.token"


@contextlib.contextmanager
def local_token(port: int) -> Iterator[Token]:
    """A token for the same user on this machine, in a folder that only that user can open, as long as the server lives."""
    path = local_file(port)
    path.unlink(missing_ok=True)
    token = add_to_file(path, name="local")
    try:
        yield token
    finally:
        with contextlib.suppress(OSError, UsageError, StorageError):
            if read_file(path)[-1].text == token.text:  # another server may have the port by now
                path.unlink()

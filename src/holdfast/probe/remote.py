"""Ask a server that `holdfast serve` started, on this or another machine."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from holdfast import errors
from holdfast.errors import HoldfastError, NotAllowed, Unreachable, UsageError
from holdfast.probe.address import Address
from holdfast.probe.serve.tokens import given_tokens, local_file, read_file
from holdfast.signals.registry import runtime_folder
from holdfast.units import size

_CONNECT_SECONDS = 5.0
_LOOK_SECONDS = 2.0
_ANSWER_SECONDS = 30.0
_KNOWN_SECONDS = 10.0  # for so long it is taken for the same that it was
_SPEAKS = 1
_NOT_OURS = "check that `holdfast serve` listens there on that port"
_ANSWER_BYTES = 512 << 20


class Remote:
    """One server. Each question is a connection of its own, so that threads can ask at the same time."""

    def __init__(self, address: Address, *, seconds: float = _ANSWER_SECONDS) -> None:
        self.address, self._seconds = address, seconds
        self._token: str | None = None
        self._greeted = -math.inf

    def __str__(self) -> str:
        return str(self.address)

    def get(self, path: str, *, seconds: float | None = None, **options: str | Sequence[str]) -> Any:
        """What is at a path."""
        return self._json("GET", path, None, options, seconds)

    def post(self, path: str, body: dict[str, Any], *, seconds: float | None = None, **options: str | Sequence[str]) -> Any:
        """What a path answers to a body."""
        return self._json("POST", path, body, options, seconds)

    def _json(self, method: str, path: str, body: Any, options: dict[str, Any], seconds: float | None) -> Any:
        with self.ask(method, path, body, options, seconds) as response:
            content = response.read(_ANSWER_BYTES + 1)
            if len(content) > _ANSWER_BYTES:
                raise Unreachable(f"{self} answers with more than {size(_ANSWER_BYTES)}.", fix="ask for less")
            return json.loads(content)

    @contextlib.contextmanager
    def ask(
        self, method: str, path: str, body: Any = None, options: dict[str, Any] | None = None, seconds: float | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """The answer while it comes; every failure becomes an error with a fix."""
        connection = self._connection()
        try:
            connection.connect()
            self._greet(connection)
            if connection.sock is not None:
                connection.sock.settimeout(self._seconds if seconds is None else seconds)
            yield self._send(connection, method, path, body, options or {})
        except TimeoutError as error:
            raise Unreachable(f"{self} did not answer in time.", fix="try again; is the machine overloaded?") from error
        except ssl.SSLCertVerificationError as error:
            problem = f"the certificate of {self} is not trusted: {error.verify_message}."
            raise Unreachable(problem, fix="name its certificate: HOLDFAST_CA=cert.pem") from error
        except ssl.SSLError as error:
            raise Unreachable(f"{self} does not speak TLS ({error.reason}).", fix=f"without TLS: -t http://{self}") from error
        except http.client.IncompleteRead as error:
            raise Unreachable(
                f"{self} closed the connection in the middle of its answer.", fix="check whether it still runs"
            ) from error
        except (http.client.HTTPException, ValueError) as error:
            raise self._strange(error) from error
        except OSError as error:
            raise Unreachable(f"{self} cannot be reached: {_why(error)}.", fix=_NOT_OURS) from error
        finally:
            connection.close()

    def _strange(self, error: Exception) -> Unreachable:
        """What it may be that answers, but not as a Holdfast server."""
        if not self.address.tls and _speaks_tls(self.address):
            return Unreachable(f"{self} speaks TLS.", fix=f"use TLS: -t https://{self}")
        if isinstance(error, http.client.RemoteDisconnected):
            reasons = "it has too many clients, it just ended, or it is not a Holdfast server"
            return Unreachable(f"{self} closed the connection without an answer: {reasons}.", fix=_NOT_OURS)
        return Unreachable(f"{self} is not a Holdfast server.", fix=_NOT_OURS)

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self.address.host, self.address.port
        if self.address.tls:
            return http.client.HTTPSConnection(host, port, timeout=_CONNECT_SECONDS, context=_trust())
        return http.client.HTTPConnection(host, port, timeout=_CONNECT_SECONDS)

    def _greet(self, connection: http.client.HTTPConnection) -> None:
        """Ask who it is before the token is shown: a wrong port, or one that speaks TLS, must not get it."""
        if time.monotonic() - self._greeted < _KNOWN_SECONDS:
            return
        connection.request("GET", "/v1/hello")
        response = connection.getresponse()
        content = json.loads(response.read(4096)) if response.status == 200 else {}
        protocol = content.get("protocol") if isinstance(content, dict) else None
        if response.status in (429, 503):
            raise Unreachable(f"{self} has too much to do.", fix="ask again in a moment")
        if not isinstance(protocol, int):
            raise http.client.HTTPException("not ours")
        if protocol != _SPEAKS:
            problem = f"{self} is Holdfast {content.get('holdfast')}, which this version does not understand."
            raise Unreachable(problem, fix="install the same version on both machines")
        self._greeted = time.monotonic()

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any, options: dict[str, Any]
    ) -> http.client.HTTPResponse:
        if self._token is None:
            self._token = token_for(self.address)
        chosen = {**({"run": self.address.run} if self.address.run else {}), **options}
        where = quote(path) + ("?" + urlencode(chosen, doseq=True) if chosen else "")
        headers = {"Authorization": f"Bearer {self._token}"}
        connection.request(method, where, None if body is None else json.dumps(body).encode(), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise _refusal(self, response.status, response.read(1 << 20))
        return response


def token_for(address: Address) -> str:
    """The token to show: on this machine the one that the server left for us, else the one in the environment."""
    if address.is_loopback:
        with contextlib.suppress(HoldfastError, OSError):
            return read_file(local_file(address.port))[0].text
    if tokens := given_tokens():
        return tokens[0].text
    with contextlib.suppress(HoldfastError, OSError):
        return read_file(_joined_file(address))[0].text
    raise NotAllowed(
        f"{address} needs a token.",
        fix="HOLDFAST_TOKEN=… or HOLDFAST_TOKEN_FILE=FILE, with the token that its server was started with",
    )


def keep_token(address: Address) -> None:
    """Keep the token for a server that a run of this machine has joined: later verbs of this user need not be told it again."""
    with contextlib.suppress(HoldfastError, OSError):
        text, path = token_for(address), _joined_file(address)
        path.touch(mode=0o600)
        path.write_text(f"{text}\n", encoding="utf-8")


def _joined_file(address: Address) -> Path:
    return runtime_folder() / f"joined-{address.host}-{address.port}.token"


def _trust() -> ssl.SSLContext:
    """Who is believed: the file or folder that HOLDFAST_CA names, else those of the system."""
    name = os.environ.get("HOLDFAST_CA")
    try:
        if name and name != "system":
            path = Path(name).expanduser()
            return ssl.create_default_context(cafile=None if path.is_dir() else path, capath=path if path.is_dir() else None)
        return ssl.create_default_context()
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"HOLDFAST_CA={name} cannot be used: {error}.", fix="name a PEM file, or system") from None


def _refusal(remote: Remote, status: int, content: bytes) -> HoldfastError:
    """The server's error, as it would have been raised here."""
    try:
        content_row = json.loads(content)
        problem, fix, kind = str(content_row["error"]), str(content_row["fix"]), str(content_row.get("kind"))
    except (ValueError, KeyError, TypeError):
        problem, fix, kind = f"HTTP {status}", _NOT_OURS, ""
    if status in (401, 403):
        return NotAllowed(f"{remote}: {problem}", fix=fix)
    if status == 400:
        error_type = getattr(errors, kind, UsageError)
        chosen: type[HoldfastError] = (
            error_type if isinstance(error_type, type) and issubclass(error_type, HoldfastError) else UsageError
        )
        return chosen(problem, fix=fix)
    return Unreachable(f"{remote}: {problem}", fix=fix)


def _speaks_tls(address: Address) -> bool:
    """Whether a TLS handshake gets an answer there."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((address.host, address.port), _LOOK_SECONDS) as plain, context.wrap_socket(plain):
            return True
    except OSError:
        return False


def _why(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "no such host"
    return error.strerror or str(error) or type(error).__name__

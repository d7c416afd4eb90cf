"""Start a server: see that nobody gets in who should not, then listen until it is told to stop."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import UsageError
from holdfast.probe.address import Address, is_loopback, parse_listen
from holdfast.probe.serve.limits import Limits
from holdfast.probe.serve.server import Server
from holdfast.probe.serve.tokens import given_tokens, local_token
from holdfast.signals.run_folder import RunFolder
from holdfast.web.app import application
from holdfast.web.engine import Engine
from holdfast.web.otlp import pushing
from holdfast.web.sessions import Sessions
from holdfast.web.site import Site

_BACKLOG = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the options of `holdfast serve` say."""

    listen: str
    token_file: Path | None = None
    read_only: bool = False
    cert: Path | None = None
    key: Path | None = None
    limits: Limits = field(default_factory=Limits)
    hosts: tuple[str, ...] = ()  # names of this server, besides its address and that of the machine
    far: tuple[str, ...] = ()  # other servers, whose runs the page shows as well
    otlp: str | None = None  # the OpenTelemetry collector that gets the metrics
    allow_actions: bool = False  # whether the page and MCP may change a training


@contextlib.contextmanager
def serving(
    settings: Settings, runs: Callable[[], list[RunFolder]], *, say: Callable[[str], None] = lambda _: None
) -> Iterator[Server]:
    """A server that answers in threads of its own, as long as the block lasts.

    Beyond this machine only with tokens that were given. On this machine the same user needs none: one is left where only that
    user can read it.
    """
    host, port = parse_listen(settings.listen)
    tokens, tls = given_tokens(settings.token_file), tls_of(settings.cert, settings.key)
    if not is_loopback(host):
        _check_open_to_all(settings, has_tokens=bool(tokens), has_tls=tls is not None, say=say)
    try:
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=_BACKLOG
        )
    except OSError as error:
        raise UsageError(
            f"cannot listen on {settings.listen}: {os.strerror(error.errno) if error.errno else error}.", fix=_fix(error)
        ) from None
    address = listening.getsockname()[:2]
    server = Server(address, runs, tokens, read_only=settings.read_only, limits=settings.limits, say=say)
    with listening, local_token(server.port) as own:
        server.tokens.append(own)
        site = Site(
            server, Sessions(server.tokens, own, server.port), far=settings.far, hosts=settings.hosts,
            allow_actions=settings.allow_actions and not settings.read_only, is_secure=tls is not None,
        )  # fmt: skip
        engine = Engine(application(site), server, listening, tls)
        engine.start()
        try:
            with pushing(site.all_runs, settings.otlp, say) if settings.otlp else contextlib.nullcontext():
                yield server
        finally:
            engine.close()


def shown(server: Server, settings: Settings) -> str:
    """What a client writes after -t."""
    host = str(server.server_address[0])
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return ("https://" if settings.cert else "") + str(Address(host, server.port))


def link(server: Server, settings: Settings) -> str:
    """The page with this user's token behind the #, which no browser sends and the page takes away at once."""
    host = str(server.server_address[0])
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    own = server.tokens[-1].text
    return f"{'https' if settings.cert else 'http'}://{Address(name, server.port)}/#token={own}"


def tls_of(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """TLS with these files; None without a certificate."""
    if cert is None:
        if key is not None:
            raise UsageError("--key without --cert.", fix="give both, or a --cert file that holds both")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=lambda: _no_password(key or cert))
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        raise UsageError(
            f"{cert} and {key or 'its key'} cannot be used: {reason}.", fix="give a certificate and its own key, as PEM files"
        ) from None
    return context


def _no_password(key: Path) -> str:
    raise UsageError(f"{key} is encrypted with a password.", fix="give an unencrypted key, in a file that only you can read")


def _check_open_to_all(settings: Settings, *, has_tokens: bool, has_tls: bool, say: Callable[[str], None]) -> None:
    if not has_tokens:
        raise UsageError(
            f"{settings.listen} is reachable from other machines: a token is required.",
            fix="holdfast serve --new-token FILE, then --token-file FILE; or --listen 127.0.0.1:8080",
        )
    if not has_tls:
        say("without TLS, others on the network can read the token. Add --cert and --key.")


def _fix(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use; choose another: --listen 127.0.0.1:8081, or port 0 for any free one"
    if error.errno == errno.EACCES:
        return "ports below 1024 need root; choose a higher one"
    return "name an address of this machine, such as 127.0.0.1:8080"

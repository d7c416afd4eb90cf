"""Addresses as people write them: `node1:8080`, `[::1]:8080`, `https://node1:8080`, with `/RUN` behind for one run of it."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import UsageError

_ADDRESS = re.compile(
    r"(?P<scheme>https?://)?(?P<host>[A-Za-z0-9_](?:[\w.\-]*\w)?|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})(?:/(?P<run>[^/]+))?/?"
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, whether it speaks TLS, and which of its runs is meant (all without a name)."""

    host: str
    port: int
    tls: bool = False
    run: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" + (f"/{self.run}" if self.run else "")

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine, and cannot be reached from another."""
        return is_loopback(self.host)


def parse(text: str) -> Address | None:
    """The address in a target; None if it is none. TLS by `https://`, or for all where HOLDFAST_CA is set."""
    match = _ADDRESS.fullmatch(text)
    if not match or not 0 < int(match["port"]) < 65536:
        return None
    tls = match["scheme"] == "https://" or (not match["scheme"] and bool(os.environ.get("HOLDFAST_CA")))
    return Address(match["host"].strip("[]"), int(match["port"]), tls, match["run"])


def is_server(target: str | None) -> bool:
    """Whether a target is the address of a server, and no file or folder here."""
    return target is not None and parse(target) is not None and not Path(target).expanduser().exists()


def parse_listen(text: str) -> tuple[str, int]:
    """Where to listen: HOST:PORT; without a host on this machine only. Port 0 takes a free one."""
    host, _, port = text.strip().rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{text!r} is not an address to listen on.", fix="give a host and a port: --listen 127.0.0.1:8080")
    host = host.strip("[]") or "127.0.0.1"
    try:
        addresses = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UsageError(f"{host} is not an address of this machine: {error.strerror}.", fix="--listen 127.0.0.1:8080") from None
    return str(addresses[0][4][0]), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can get there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

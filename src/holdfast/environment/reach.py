"""Whether a server can be reached, in words that never hold what the address keeps secret."""

from __future__ import annotations

import contextlib
import socket
import ssl
import urllib.error
import urllib.request
from urllib.parse import SplitResult, urlsplit

_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}


def without_secrets(url: str) -> str:
    """An address without user, password, and what stands behind the question mark."""
    parts = urlsplit(url)
    host = _host(parts)
    return SplitResult(parts.scheme, host, parts.path, "", "").geturl() if host else f"{parts.scheme}:{parts.path}"


def why_unreachable(url: str, seconds: float) -> str | None:
    """None if something listens there, else the reason in words."""
    parts = urlsplit(url)
    try:
        port = parts.port or _PORTS.get(parts.scheme.partition("+")[0])
    except ValueError:
        return "the port is invalid"
    if not parts.hostname or port is None:
        return "the address has no host"
    try:
        with socket.create_connection((parts.hostname, port), timeout=seconds):
            return None
    except socket.gaierror:
        return f"cannot resolve {parts.hostname}"
    except TimeoutError:
        return f"no answer within {seconds:.0f} s"
    except ConnectionRefusedError:
        return f"nothing listens on port {port}"
    except OSError as error:
        return error.strerror or str(error)


def ask_http(url: str, seconds: float, headers: dict[str, str] | None = None) -> tuple[int, str]:
    """The status of a page and the first of its text; (0, reason) if there was no answer."""
    request = urllib.request.Request(url, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return int(answer.status), answer.read(200).decode(errors="replace")
    except urllib.error.HTTPError as error:
        with contextlib.suppress(OSError):
            return error.code, error.read(200).decode(errors="replace")
        return error.code, ""
    except (urllib.error.URLError, TimeoutError, ssl.SSLError, OSError) as error:
        return 0, str(getattr(error, "reason", error))


def _host(parts: SplitResult) -> str:
    with contextlib.suppress(ValueError):
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.hostname}{port}" if parts.hostname else ""
    return parts.hostname or ""

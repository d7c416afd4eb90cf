"""A request as a route sees it, and what it can answer with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, NoSuchRun
from holdfast.signals.run_folder import RunFolder

if TYPE_CHECKING:
    from holdfast.probe.serve.server import Server
    from holdfast.probe.serve.tokens import Token


class Denied(HoldfastError):
    """A request that is not answered, with HTTP's number for why."""

    def __init__(self, status: int, problem: str, *, fix: str) -> None:
        super().__init__(problem, fix=fix)
        self.status = status


@dataclass(frozen=True, slots=True)
class Json:
    """An answer that is one JSON value."""

    content: Any
    status: int = 200


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that is written piece by piece."""

    write_to: Callable[[Any], None]
    kind: str = "application/vnd.apache.arrow.stream"


Reply = Json | Stream


@dataclass(slots=True)
class Request:
    """What a client asks: the body, what stands behind `?`, the words of the path, and who it is."""

    server: Server
    body: dict[str, Any]
    options: dict[str, list[str]]
    path_parts: tuple[str, ...] = ()
    who: Token | None = field(default=None)
    address: str = ""

    @property
    def runs(self) -> list[RunFolder]:
        """The runs that it is about: those that are named, else all that are served."""
        served = self.server.runs()
        names = self.options.get("run")
        chosen = [run for run in served if names is None or run.name in names]
        if not chosen and names:
            there = ", ".join(run.name for run in served) or "none"
            raise NoSuchRun(f"there is no run {', '.join(names)} here; there are: {there}.", fix="`holdfast ps -t HOST:PORT`")
        return chosen

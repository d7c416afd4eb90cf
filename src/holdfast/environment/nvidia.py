"""What NVIDIA's management library (NVML) reports about driver and cards.

It runs in a child process: on a machine whose driver is broken the library can hang or crash.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.environment.child import DONE, TIMED_OUT, run_child

_VENDOR, _DISPLAY = "0x10de", ("0x0300", "0x0302")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One card. Memory in bytes; `links` tells for each other card whether it can be reached directly, and how not."""

    index: int
    name: str = ""
    uuid: str = ""
    capability: tuple[int, int] | None = None
    total: int = 0
    used: int = 0
    free: int = 0
    compute_mode: int = 0
    processes: tuple[tuple[int, int | None], ...] = ()
    links: dict[int, int] = field(default_factory=dict)
    events: int = 0

    @property
    def sm(self) -> str:
        """The capability as compilers write it: sm_90."""
        return f"sm_{self.capability[0]}{self.capability[1]}" if self.capability else "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvidia:
    """Driver and cards. `error` is NVML's number (or a word) if it did not answer, `words` what it said."""

    driver: str = ""
    cuda: tuple[int, int] | None = None
    cards: tuple[Card, ...] = ()
    error: int | str | None = None
    message: str = ""
    on_the_bus: int = 0

    @property
    def present(self) -> bool:
        """Whether there is a card, known to the driver or not."""
        return bool(self.cards) or self.on_the_bus > 0


def read_nvidia(seconds: float = 20.0, bus: Path = Path("/sys/bus/pci/devices")) -> Nvidia:
    """Ask the driver, and the bus for cards that no driver knows."""
    ended = run_child("nvml_facts.py", seconds=seconds)
    seen = cards_on_the_bus(bus)
    if ended.how == TIMED_OUT:
        return Nvidia(
            error="hang", message=f"NVML did not answer in {seconds:.0f} s (after {ended.stage or 'start'})", on_the_bus=seen
        )
    if ended.how != DONE:
        return Nvidia(error="crash", message=ended.last_output, on_the_bus=seen)
    facts = ended.facts
    if facts.get("error") is not None:
        return Nvidia(
            error=facts["error"], message=str(facts.get("message", "")), driver=facts.get("driver", ""), on_the_bus=seen
        )
    version = facts.get("cuda")
    return Nvidia(
        driver=facts.get("driver", ""),
        cuda=(version // 1000, version % 1000 // 10) if version else None,
        cards=tuple(_card(row) for row in facts.get("cards", ())),
        on_the_bus=seen,
    )


def cards_on_the_bus(folder: Path) -> int:
    """NVIDIA cards that the kernel sees, with or without a driver."""
    count = 0
    for device in folder.glob("*") if folder.is_dir() else ():
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        count += vendor == _VENDOR and kind.startswith(_DISPLAY)
    return count


def _card(row: dict[str, Any]) -> Card:
    capability = row.pop("capability", None)
    processes = tuple((int(pid), used) for pid, used in row.pop("processes", ()))
    links = {int(other): int(status) for other, status in row.pop("links", {}).items()}
    return Card(capability=tuple(capability) if capability else None, processes=processes, links=links, **row)

"""Which ranks a network no longer reaches: connections whose packets are sent again and again, as Linux counts them."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_SENT_AGAIN = 3  # times: about a second and a half
_RETRANSMITS, _ESTABLISHED = "01", "01"


class Connection(NamedTuple):
    """One open TCP connection of a process: its own address, the other end's, and how often its last packet was sent again."""

    mine: str
    theirs: str
    sent_again: int


def cut_off(pids: Mapping[int, int]) -> dict[str, Any]:
    """`ranks` on the addresses that the first rank, or most of the others, cannot reach; `pids` are processes by rank."""
    of_rank = {rank: list(connections(pid)) for rank, pid in pids.items()}
    homes = {rank: {link.mine for link in links} for rank, links in of_rank.items()}
    lost = [(rank, link.theirs) for rank, links in of_rank.items() for link in links if link.sent_again >= _SENT_AGAIN]
    first = min(pids, default=0)
    counts = Counter(address for _, address in lost if address not in homes.get(first, ()))
    if not counts:
        return {}
    address = counts.most_common(1)[0][0]
    return {"cut_off": address, "missing": sorted(rank for rank, home in homes.items() if address in home)}


def connections(pid: int) -> Iterable[Connection]:
    """The connections of a process, in its own network namespace; nothing where they cannot be read."""
    process = Path("/proc") / str(pid)
    inodes = set()
    with contextlib.suppress(OSError):
        for entry in os.listdir(process / "fd"):  # noqa: PTH208 - links to nowhere
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(process / "fd" / entry))  # noqa: PTH115
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (process / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _ESTABLISHED and f"socket:[{fields[9]}]" in inodes:
                    again = int(fields[6], 16) if fields[5].startswith(_RETRANSMITS) else 0
                    yield Connection(_address(fields[1]), _address(fields[2]), again)


def _address(text: str) -> str:
    """The kernel writes each four bytes as a number of this machine's byte order."""
    digits = text.partition(":")[0]
    packed = b"".join(bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8))
    address = ipaddress.ip_address(packed)
    return str(getattr(address, "ipv4_mapped", None) or address)

"""Four ranks on two machines, as two network namespaces with a link between them: two_hosts.py SCRIPT [ARGUMENTS…]. Needs root.

Whoever is left of an earlier start is removed first; a rank that fails ends the others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

ADDRESSES = ("10.77.0.1", "10.77.0.2")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def make_hosts() -> list[str]:
    """Two namespaces, named after this process."""
    for old in (line.split()[0] for line in subprocess.check_output(["ip", "netns"], text=True).splitlines()):
        if old.startswith("drill-") and not Path(f"/proc/{old.split('-')[1]}").exists():
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", old)
    names = [f"drill-{os.getpid()}-{number}" for number in range(2)]
    for name in names:
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    ip("link", "add", "link0", "netns", names[0], "type", "veth", "peer", "name", "link0", "netns", names[1])
    for name, address in zip(names, ADDRESSES, strict=True):
        ip("-n", name, "addr", "add", f"{address}/24", "dev", "link0")
        ip("-n", name, "link", "set", "link0", "up")
    return names


def start(name: str, rank: int) -> subprocess.Popen[bytes]:
    words = ["ip", "netns", "exec", name, sys.executable, *sys.argv[1:]]
    meeting = {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29511", "GLOO_SOCKET_IFNAME": "link0", "HOLDFAST_DRILL_LINK": "link0"}
    return subprocess.Popen(
        words, env={**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "4"}
    )


def main() -> int:
    names = make_hosts()
    ranks = [start(names[rank // 2], rank) for rank in range(4)]

    def end(number: int, _frame: FrameType | None) -> None:
        for one in ranks:
            one.send_signal(number)

    signal.signal(signal.SIGTERM, end)
    try:
        while any(one.poll() is None for one in ranks) and not any(one.poll() for one in ranks):
            time.sleep(0.1)
    finally:
        for one in ranks:
            one.kill()
            one.wait()
        for name in names:
            ip("netns", "del", name)
    return max(abs(one.returncode or 0) for one in ranks)


if __name__ == "__main__":
    raise SystemExit(main())

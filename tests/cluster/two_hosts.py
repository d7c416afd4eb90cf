"""Two hosts on this machine: each has a network, a host name and processes of its own, and can be switched off."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PYTHON = sys.executable


def wait_for(what: Callable[[], Any], why: Callable[[], str], seconds: float = 900.0) -> Any:
    """Look until something holds; fails with what was waited for, and what there is instead."""
    deadline = time.monotonic() + seconds
    while not (seen := what()):
        assert time.monotonic() < deadline, f"waited in vain: {why()}"
        time.sleep(0.2)
    return seen


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Host:
    """One host. `private` is a folder that only this host has, under the same path on every host."""

    def __init__(self, number: int, folder: Path, private: Path | None) -> None:
        self.number, self.name, self.folder, self._private = number, f"node{number}", folder, private
        self.space = f"hf{os.getpid() % 100000}h{number}"
        self.address = f"10.88.{os.getpid() % 250}.{10 + number}"
        self._near = f"hf{os.getpid() % 100000}v{self.number}"  # its link, as it is seen from here
        self._init: subprocess.Popen[bytes] | None = None
        self._first: int = 0

    def connect(self, bridge: str) -> None:
        """Plug it into a network."""
        ip("netns", "add", self.space)
        ip("link", "add", self._near, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        ip("link", "set", self._near, "master", bridge, "up")
        ip("-n", self.space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            ip("-n", self.space, "link", "set", device, "up")

    def power_on(self) -> None:
        """Start it; its first process does nothing."""
        hosts = shlex.quote(str(self.folder / "hosts"))
        set_up = f"mount --bind {hosts} /etc/hosts && hostname {self.name}"
        if self._private is not None:
            own = self.folder / f"disk-{self.number}"
            own.mkdir(exist_ok=True)
            set_up += f" && mount --bind {shlex.quote(str(own))} {shlex.quote(str(self._private))}"
        ready = self.folder / f"ready-{self.number}"
        ready.unlink(missing_ok=True)
        script = f"{set_up} && touch {shlex.quote(str(ready))} && exec sleep 1000000"
        words = ["ip", "netns", "exec", self.space, "unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._init = subprocess.Popen([*words, "sh", "-c", script], start_new_session=True)
        wait_for(ready.exists, lambda: f"{self.name} to start")
        self._first = int(Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()[0])

    def power_off(self) -> None:
        """End everything that runs on it at once, as a power cut does. The network is cut first: nobody gets a goodbye."""
        self.cable(plugged=False)
        if self._init is not None:
            os.kill(self._first, signal.SIGKILL)
            self._init.wait()
        self.cable(plugged=True)

    def cable(self, *, plugged: bool) -> None:
        """Pull the network cable, or plug it in again."""
        ip("-n", self.space, "link", "set", "eth0", "up" if plugged else "down")

    def start(self, *words: str, cwd: Path, out: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start a command on it."""
        runtime = self.folder / f"runtime-{self.number}"
        runtime.mkdir(exist_ok=True)
        own = {
            "NODE_RANK": str(self.number), "XDG_RUNTIME_DIR": str(runtime), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }  # fmt: skip
        enter = ["nsenter", "-t", str(self._first), "-a", "sh", "-c", 'cd "$0" && exec "$@"', str(cwd)]
        with out.open("ab") as file:
            return subprocess.Popen(
                [*enter, *words], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                env={**os.environ, **own, **environment}, start_new_session=True,
            )  # fmt: skip

    def holdfast(self, *words: str, cwd: Path, **environment: str) -> str:
        """What a verb prints on it."""
        out = self.folder / f"said-{self.number}"
        out.unlink(missing_ok=True)
        self.start(PYTHON, "-m", "holdfast", *words, cwd=cwd, out=out, **environment).wait()
        return out.read_text()

    def remove(self) -> None:
        """Take it away with everything on it."""
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            self.power_off()
        subprocess.run(["ip", "link", "del", self._near], check=False, capture_output=True)  # the kernel takes its time for it
        subprocess.run(["ip", "netns", "del", self.space], check=False, capture_output=True)


@contextlib.contextmanager
def two_hosts(folder: Path, *, private: Path | None = None) -> Iterator[list[Host]]:
    """Two hosts for the length of a `with` block; skips where that needs more rights."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
        pytest.skip("network namespaces need root, iproute2 and util-linux")
    bridge = f"hf{os.getpid() % 100000}br"
    hosts = [Host(number, folder, private) for number in range(2)]
    names = "".join(f"{one.address} {one.name}\n" for one in hosts)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("link", "set", bridge, "up")
        for one in hosts:
            one.connect(bridge)
            one.power_on()
        yield hosts
    finally:
        for one in hosts:
            one.remove()
        subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)

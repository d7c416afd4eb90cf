"""A real Slurm of two nodes on this machine: slurmctld and two slurmd, started as root in a folder of their own."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

APT = "apt-get install -y slurmctld slurmd slurm-client"
_CONF = """\
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
OverTimeLimit=0
KillWait=5
SlurmdTimeout=3600
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs={cores} State=UNKNOWN
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs={cores} State=UNKNOWN
PartitionName=low Nodes=node1,node2 Default=YES MaxTime=UNLIMITED PriorityTier=1 GraceTime=60 State=UP
PartitionName=high Nodes=node1,node2 MaxTime=UNLIMITED PriorityTier=10 PreemptMode=OFF State=UP
"""
_SECONDS = 240.0


def wait_for(what: Callable[[], Any], why: str, seconds: float = _SECONDS) -> Any:
    """Look until something holds; fails with what was waited for, and what there is instead."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"waited for {why} in vain"
        time.sleep(0.2)
    return found


class Cluster:
    """The commands of Slurm, and the nodes as something that can be switched off."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "state").mkdir()
        ports = _free_ports(3)
        conf = _CONF.format(
            folder=folder, host=socket.gethostname(), port=ports[0], port1=ports[1], port2=ports[2], cores=os.cpu_count()
        )
        (folder / "slurm.conf").write_text(conf)
        (folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start the daemons, and wait until both nodes are idle."""
        self._daemon("slurmctld", "slurmctld", "-D", "-i")
        wait_for(lambda: self.run("scontrol", "ping", check=False).returncode == 0, "slurmctld")
        for node in ("node1", "node2"):
            self.power_on(node)

    def power_on(self, node: str) -> None:
        """Start a node; a job that waits for it may begin at once."""
        self._daemon(node, "slurmd", "-D", "-N", node)
        wait_for(lambda: not {"DOWN", "NOT_RESPONDING", "UNKNOWN"} & self.node_state(node), f"{node} to be up")

    def power_off(self, node: str) -> None:
        """End everything that runs on a node, at once, as a power cut does; then tell Slurm."""
        self._kill(self._daemons.pop(node))
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SLURMD_NODENAME") == node:
                    process.kill()
        for process in psutil.process_iter(["name", "cmdline"]):  # the step daemons, which keep their parent's words
            with contextlib.suppress(psutil.Error):
                if process.name() == "slurmstepd" and not process.children() and self._is_ours(process):
                    process.kill()
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=power")

    def stop(self) -> None:
        """End all jobs and daemons."""
        self.run("scancel", "--full", "--signal=KILL", "--user=root", check=False)
        self.run("scancel", "--user=root", check=False)
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self.run("squeue", "-h", check=False).stdout, "no jobs", 30.0)
        for daemon in self._daemons.values():
            self._kill(daemon)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.name() == "slurmstepd" and self._is_ours(process):
                    process.kill()

    def run(self, *words: str, check: bool = True, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command that knows this cluster."""
        done = subprocess.run(words, capture_output=True, text=True, env=self.environment, cwd=cwd, check=False)
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done

    def node_state(self, node: str) -> set[str]:
        """All that Slurm says of a node: IDLE, MIXED, DOWN, COMPLETING, NOT_RESPONDING, …"""
        text = self.run("scontrol", "show", "node", node).stdout
        return set(re.findall(r"State=(\S+)", text)[0].replace("*", "+NOT_RESPONDING").split("+"))

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows about a job; empty once it has forgotten it."""
        text = self.run("scontrol", "show", "job", number, check=False).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def _is_ours(self, process: psutil.Process) -> bool:
        return process.environ().get("SLURM_CONF") == self.environment["SLURM_CONF"]

    def _daemon(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.environment, start_new_session=True
            )

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster for the length of a `with` block; skips where Slurm is not installed."""
    if missing := [name for name in ("slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]:
        pytest.skip(f"{', '.join(missing)} not installed: {APT}")
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons start jobs as root only: run it as root, in a container")
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]

"""End a command with everything that it has started: asked first, then killed; those that left its group included.

A process belongs to the run if it descends from the command, or was started with the run's name in its environment: loader
workers whose parent died, daemons, processes in sessions of their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from holdfast.signals.run_folder import RunFolder

_ASK_SECONDS, _KILL_SECONDS = 5.0, 10.0
_GPU_SECONDS, _GPU_LOOK = 30.0, 0.3
_FALLS = 16 << 20  # bytes between two looks


def members(run: RunFolder, root: int | None) -> list[psutil.Process]:
    """All living processes of the run but this one, and what this one has started for itself."""
    processes: dict[int, psutil.Process] = {}
    if root is not None:
        with contextlib.suppress(psutil.Error):
            top = psutil.Process(root)
            processes |= {process.pid: process for process in (top, *top.children(recursive=True))}
    mark = f"HOLDFAST_RUN={run.path}".encode()
    for pid in psutil.pids():
        if pid not in processes and pid != os.getpid() and _started_with(pid, mark):
            with contextlib.suppress(psutil.Error):
                processes[pid] = psutil.Process(pid)
    return [process for process in processes.values() if not _gone(process)]


def end_all(run: RunFolder, root: int | None, *, ask: float = _ASK_SECONDS) -> dict[str, Any]:
    """TERM, then KILL, until nobody is left; what happened, as the journal holds it. `root` is reaped by whoever waits for it."""
    terminated = members(run, root)
    pids = {process.pid for process in terminated}
    _send(terminated, signal.SIGTERM)
    _send([process for process in terminated if _is_stopped(process)], signal.SIGCONT)
    _wait(terminated, ask)
    killed = [member for member in members(run, root) if not _gone(member)]
    _send(killed, signal.SIGKILL)
    _wait(killed, _KILL_SECONDS)
    left = [process.pid for process in killed if not _gone(process)]
    row: dict[str, Any] = {"processes": len(pids | {process.pid for process in killed}), "killed": len(killed)}
    if left:
        row["left"] = left  # in the kernel, waiting for a disk
    if (seconds := wait_for_gpus(pids | {process.pid for process in killed})) is not None:
        row["gpu_free_after"] = seconds
    return row


def wait_for_gpus(pids: set[int]) -> float | None:
    """Wait until no GPU lists one of these processes, and its memory falls no more; seconds, or None without an NVIDIA driver.

    In a container the driver knows the processes by other numbers: then only the memory tells.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        gpus = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
    except Exception:  # noqa: BLE001 - a driver can fail in many ways
        return None
    begun, before = time.monotonic(), _used(pynvml, gpus)
    while time.monotonic() - begun < _GPU_SECONDS:
        time.sleep(_GPU_LOOK)
        now = _used(pynvml, gpus)
        if before - now < _FALLS and not any(pids & _using(pynvml, gpu) for gpu in gpus):
            break
        before = now
    return round(time.monotonic() - begun, 1)


def _used(nvml: Any, gpus: list[Any]) -> int:
    total = 0
    for gpu in gpus:
        with contextlib.suppress(nvml.NVMLError):
            total += int(nvml.nvmlDeviceGetMemoryInfo(gpu).used)
    return total


def _using(nvml: Any, gpu: Any) -> set[int]:
    try:
        return {int(process.pid) for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
    except nvml.NVMLError:
        return set()


def _started_with(pid: int, mark: bytes) -> bool:
    with contextlib.suppress(OSError):
        return mark in (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
    return False


def _send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            process.send_signal(number)  # looks first whether the number is another process's by now


def _is_stopped(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return False


def _wait(processes: list[psutil.Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(_gone(process) for process in processes):
        time.sleep(0.05)


def _gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False

"""Asks NVML for the driver, the cards, who uses them, and which can reach each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.environment.child_output import tell

_READ = 0  # NVML_P2P_CAPS_INDEX_READ, which the package has as a tuple by mistake


def main() -> None:
    """Tell all of it; an error of NVML is told by its number and words."""
    try:
        import pynvml as nvml
    except ImportError:
        return tell("import", error="missing", message="the Python package nvidia-ml-py is not installed")
    tell("import")
    try:
        nvml.nvmlInit()
        tell("start")
        tell("driver", driver=_text(nvml.nvmlSystemGetDriverVersion()), cuda=nvml.nvmlSystemGetCudaDriverVersion_v2())
        handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
        tell("cards", cards=[_card(nvml, number, handles) for number in range(len(handles))])
    except nvml.NVMLError as error:
        tell("error", error=error.value, message=str(error))


def _card(nvml: Any, number: int, handles: list[Any]) -> dict[str, Any]:
    handle = handles[number]
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    return {
        "index": number,
        "name": _text(_ask(nvml, nvml.nvmlDeviceGetName, handle) or ""),
        "uuid": _text(_ask(nvml, nvml.nvmlDeviceGetUUID, handle) or ""),
        "capability": _ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle),
        "total": memory.total if memory else 0,
        "used": memory.used if memory else 0,
        "free": memory.free if memory else 0,
        "compute_mode": _ask(nvml, nvml.nvmlDeviceGetComputeMode, handle) or 0,
        "events": _ask(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0,
        "processes": _processes(nvml, handle),
        "links": _links(nvml, number, handles),
    }


def _processes(nvml: Any, handle: Any) -> list[tuple[int, int | None]]:
    """Computing ones and drawing ones; one that does both is listed once."""
    by_pid: dict[int, int | None] = {}
    for question in (nvml.nvmlDeviceGetGraphicsRunningProcesses, nvml.nvmlDeviceGetComputeRunningProcesses):
        for process in _ask(nvml, question, handle) or ():
            by_pid[process.pid] = process.usedGpuMemory
    return list(by_pid.items())


def _links(nvml: Any, number: int, handles: list[Any]) -> dict[int, int]:
    links = {}
    for other, handle in enumerate(handles):
        if other != number:
            status = _ask(nvml, nvml.nvmlDeviceGetP2PStatus, handles[number], handle, _READ)
            if status is not None:
                links[other] = int(status)
    return links


def _ask(nvml: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """None where a card does not tell (MIG, old ones), or this NVML does not know the question."""
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    main()

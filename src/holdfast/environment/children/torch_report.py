"""Imports torch, reports its build and devices, and runs a first kernel on each."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import warnings
from typing import Any

from holdfast.environment.child_output import tell


def main() -> None:
    """Tell stage by stage."""
    try:
        import torch
    except BaseException as error:  # noqa: BLE001 - a broken install fails in many ways, and all are told
        return tell("import", error=f"{type(error).__name__}: {error}")
    tell("import", version=str(torch.__version__), cuda=torch.version.cuda, hip=getattr(torch.version, "hip", None))
    mps = getattr(torch.backends, "mps", None)
    tell("processor", threads=torch.get_num_threads(), mps=bool(mps and mps.is_available()), triton=_triton())
    if torch.version.cuda or getattr(torch.version, "hip", None):
        _tell_cuda(torch)
    return None


def _tell_cuda(torch: Any) -> None:
    tell("kernels it was built with", architectures=torch.cuda.get_arch_list())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    tell("driver", available=available, why_not=" ".join(str(caught[0].message).split()) if caught else "")
    if not available:
        return
    count = torch.cuda.device_count()
    devices = []
    for number in range(count):
        properties = torch.cuda.get_device_properties(number)
        devices.append(
            {"name": properties.name, "capability": f"sm_{properties.major}{properties.minor}", "memory": properties.total_memory}
        )
    tell("devices", devices=devices)
    kernels: dict[str, str] = {}
    for number in range(count):
        kernels[str(number)] = _first_kernel(torch, number)
        tell(f"a first kernel on cuda:{number}", kernels=kernels)
    peers = {f"{a}-{b}": torch.cuda.can_device_access_peer(a, b) for a in range(count) for b in range(count) if a != b}
    tell("peers", peers=peers)
    tell("nccl", nccl=_nccl(torch))


def _first_kernel(torch: Any, number: int) -> str:
    """Nothing if it ran and its result is right, else the error."""
    try:
        result = (torch.ones(64, device=f"cuda:{number}") + 1).sum().item()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "" if result == 128 else f"1 + 1 over 64 numbers gave {result}"


def _nccl(torch: Any) -> str | None:
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError, TypeError):
        return None


def _triton() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        triton = importlib.import_module("triton")
    except BaseException as error:  # noqa: BLE001 - one that cannot be imported counts as missing, with its reason
        return f"broken: {error}"
    return str(getattr(triton, "__version__", "unknown"))


if __name__ == "__main__":
    gc.disable()  # a tenth of importing torch
    main()
    os._exit(0)  # taking torch down again takes as long

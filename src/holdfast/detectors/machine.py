"""`computing-on-cpu` and `low-gpu-utilisation`: what a training makes of the GPUs that its machine has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.signals.view import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineView:
    """Of a training: its newest step, how long steps take, and whether tensors were on a GPU; and the samples of the GPUs."""

    step: int
    steps: int
    step_seconds: float
    on_gpu: bool
    gpus: int  # that the driver shows
    torch: str = ""  # its version, which says what it was built for: 2.4.0+cpu
    cpu_chosen: bool = False  # the command or the script names the CPU as its device, or the GPUs are hidden
    utilisation: Floats  # of the busiest one, sample by sample


def computing_on_cpu(view: MachineView, *, at_least: int = 50, long: float = 0.1) -> Finding | None:
    """There is a GPU, and no tensor was ever on it. Info where that was chosen, or where steps are short enough as it is."""
    if view.on_gpu or view.gpus == 0 or view.steps < at_least:
        return None
    evidence = {"onset": 0, "gpus": view.gpus, "step_seconds": view.step_seconds, "torch": view.torch}
    severity = "critical" if view.step_seconds >= long and not view.cpu_chosen else "info"
    return Finding("computing-on-cpu", step=view.step, severity=severity, evidence=evidence)


def low_gpu_utilisation(view: MachineView, *, at_least: int = 30, low: float = 0.5) -> Finding | None:
    """In half of the samples, over a minute and more, a kernel ran for less than half of the time. Always info."""
    measured_values = view.utilisation[np.isfinite(view.utilisation)]
    if not view.on_gpu or len(measured_values) < at_least or (usual := float(np.median(measured_values))) >= low:
        return None
    return Finding("low-gpu-utilisation", step=view.step, severity="info", evidence={"onset": 0, "utilisation": usual})

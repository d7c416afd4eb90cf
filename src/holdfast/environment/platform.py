"""What machine this is: processor, cloud notebook, batch system, container, and the limits it is held to."""

from __future__ import annotations

import contextlib
import os
import platform as system
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.environment.cgroup import Limits, read_limits

_NEOVERSE_V2 = ("0x41", "0xd4f")  # implementer and part of Grace's cores in /proc/cpuinfo; other makers have them too
_BOARD = ("sys_vendor", "product_name", "board_vendor")
_CONTAINERS = ("docker", "kubepods", "containerd", "lxc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Facts about the machine that decide which rules hold. `cores` is what the system shows, `usable` what may be used."""

    system: str = "Linux"
    processor: str = "x86_64"
    grace: bool = False
    kaggle: bool = False
    colab: bool = False
    slurm: bool = False
    container: bool = False
    cores: int = 1
    affinity: int = 1
    memory: int = 0
    limits: Limits = field(default_factory=Limits)

    @property
    def arm(self) -> bool:
        """Whether the processor is an ARM one."""
        return self.processor in ("aarch64", "arm64")

    @property
    def usable(self) -> float:
        """Processors that this process gets: by affinity and by the quota of its group."""
        return min(float(self.affinity), self.limits.cpus or float(self.affinity))

    @property
    def names(self) -> list[str]:
        """What the machine is called, the most special first."""
        special = {
            "Kaggle": self.kaggle, "Colab": self.colab, "Slurm": self.slurm, "Grace": self.grace, "container": self.container,
        }  # fmt: skip
        return [name for name, there in special.items() if there]


def read_platform(environment: Mapping[str, str] = os.environ, root: Path = Path("/"), limits: Limits | None = None) -> Platform:
    """Look at this machine. `root` is where its files are."""
    cores = os.cpu_count() or 1
    return Platform(
        system=system.system(),
        processor=system.machine(),
        grace=is_grace(_read(root / "proc/cpuinfo"), " ".join(_read(root / "sys/class/dmi/id" / name) for name in _BOARD)),
        kaggle="KAGGLE_KERNEL_RUN_TYPE" in environment or (root / "kaggle").is_dir(),
        colab="COLAB_RELEASE_TAG" in environment or "COLAB_GPU" in environment,
        slurm="SLURM_JOB_ID" in environment,
        container=_in_container(environment, root),
        cores=cores,
        affinity=len(os.sched_getaffinity(0)) if sys.platform == "linux" else cores,
        memory=_memory(),
        limits=read_limits() if limits is None else limits,
    )


def is_grace(cpuinfo: str, board: str) -> bool:
    """Whether the processor is NVIDIA's Grace, by its cores and by whose board it sits on."""
    implementer, part = _NEOVERSE_V2
    cores = all(
        re.search(rf"^{name}\s*: {value}$", cpuinfo, re.MULTILINE)
        for name, value in (("CPU implementer", implementer), ("CPU part", part))
    )
    return cores and re.search(r"nvidia|grace|gh200|gb200", board, re.IGNORECASE) is not None


def _in_container(environment: Mapping[str, str], root: Path) -> bool:
    marks = (root / ".dockerenv", root / "run/.containerenv")
    if any(mark.exists() for mark in marks) or "KUBERNETES_SERVICE_HOST" in environment:
        return True
    return any(mark in _read(root / "proc/1/cgroup") for mark in _CONTAINERS)


def _memory() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def _read(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""

"""All checks, in the order in which they are shown: the machine, its cards, torch, memory and disk, what surrounds a run."""

from __future__ import annotations

from holdfast.environment.check import Check
from holdfast.environment.checks import (
    all_reduce,
    clock,
    compile,
    compiled_parts,
    disk_space,
    disk_speed,
    gpu_driver,
    gpu_others,
    gpu_visible,
    limits,
    memory,
    mlflow,
    packages,
    peer_access,
    platform,
    processors,
    shared_memory,
    slurm,
    stacks,
    torch_build,
    wandb,
)

CHECKS: tuple[Check, ...] = tuple(
    module.CHECK
    for module in (
        *(platform, slurm, gpu_driver, gpu_visible, gpu_others, torch_build, packages),
        *(compiled_parts, compile, all_reduce, peer_access, processors, memory, shared_memory),
        *(limits, disk_space, disk_speed, clock, stacks, mlflow, wandb),
    )
)
BY_NAME = {check.name: check for check in CHECKS}

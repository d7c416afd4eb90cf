"""Does the NVIDIA driver answer, and does it know every card that is in the machine?"""

from __future__ import annotations

from typing import Any

from holdfast.environment.check import Check, Fix, Verdict, note, ok, problem, skipped, warning
from holdfast.environment.machine import Machine
from holdfast.environment.nvidia import Card, Nvidia
from holdfast.environment.platform import Platform
from holdfast.units import size

_LIBRARY_MISSING, _NOT_LOADED, _MISMATCH, _LOST, _NO_PERMISSION = 12, 9, 18, 15, 4
_MODES = {2: "prohibited", 3: "exclusive process"}  # nvmlComputeMode_t
_HOT, _POWER_BRAKE = 0x8 | 0x20 | 0x40, 0x80  # clocks held down: hardware, software and hardware for heat; the power supply
_MESSAGES = "sudo dmesg | grep -i -e nvrm -e xid"
_INSTALL = Fix("install the NVIDIA driver", ("sudo ubuntu-drivers install", "sudo reboot"))
_CONTAINER = Fix("pass the GPUs to the container", ("docker run --gpus all IMAGE",))
_KNOWN: dict[int | str, tuple[str, Fix]] = {
    _LIBRARY_MISSING: ("the machine has an NVIDIA GPU, but no driver library (libnvidia-ml.so.1)", _INSTALL),
    _NOT_LOADED: ("the NVIDIA driver is installed, but not loaded", Fix("load it", ("sudo modprobe nvidia",))),
    _MISMATCH: ("driver and driver library differ (updated without a restart)", Fix("reboot the machine", ("sudo reboot",))),
    _LOST: ("a GPU has fallen off the bus", Fix("read the kernel log, then reboot", (_MESSAGES, "sudo reboot"))),
    _NO_PERMISSION: ("this user may not use the driver", Fix("see who owns the device files", ("ls -l /dev/nvidia*",))),
    "hang": ("", Fix("a hung driver needs a reboot; the reason is in the kernel log", (_MESSAGES,))),
    "missing": ("", Fix("install it", ("pip install nvidia-ml-py",))),
}


def ask(machine: Machine) -> Verdict:
    """Driver and cards, or why there are none."""
    nvidia = machine.nvidia
    if nvidia.error is None:
        return _cards(nvidia, machine.platform)
    if nvidia.error in (_LIBRARY_MISSING, "missing") and not nvidia.present:
        return skipped("no NVIDIA GPU in this machine")
    return _broken(nvidia, in_container=machine.platform.container)


def _cards(nvidia: Nvidia, platform: Platform) -> Verdict:
    cuda = f"{nvidia.cuda[0]}.{nvidia.cuda[1]}" if nvidia.cuda else "unknown"
    facts: dict[str, Any] = {
        "driver": nvidia.driver, "serves CUDA up to": cuda,
        "cards": [f"{card.name}, {card.sm}, {size(card.total)}" for card in nvidia.cards],
    }  # fmt: skip
    if not nvidia.cards:
        return problem("the driver answers, but lists no GPU", _CONTAINER, **facts)
    if nvidia.on_the_bus > len(nvidia.cards) and (platform.container or platform.slurm):
        where = "container" if platform.container else "job"
        return note(f"this {where} was given {len(nvidia.cards)} of the machine's {nvidia.on_the_bus} GPUs", **facts)
    if nvidia.on_the_bus > len(nvidia.cards):
        fix = Fix("look for the reason in the kernel log, then reboot", (_MESSAGES,))
        return warning(f"{nvidia.on_the_bus} GPUs are in the machine, the driver lists {len(nvidia.cards)}", fix, **facts)
    return _modes(nvidia, facts)


def _modes(nvidia: Nvidia, facts: dict[str, Any]) -> Verdict:
    for card in nvidia.cards:
        mode = _MODES.get(card.compute_mode)
        if mode:
            fix = Fix("allow any number of processes", (f"sudo nvidia-smi -i {card.index} -c 0",))
            level = problem if mode == "prohibited" else note
            return level(f"GPU {card.index} is in compute mode: {mode}", fix, **facts)
    hot = [card for card in nvidia.cards if card.events & (_HOT | _POWER_BRAKE)]
    if hot:
        return _held_down(hot, facts)
    names = sorted({card.name for card in nvidia.cards})
    return ok(f"driver {nvidia.driver}, {len(nvidia.cards)} × {' and '.join(names)}", **facts)


def _held_down(cards: list[Card], facts: dict[str, Any]) -> Verdict:
    indices = ", ".join(str(card.index) for card in cards)
    why = "heat" if any(card.events & _HOT for card in cards) else "the power supply"
    fix = Fix("check temperatures and clocks under load", ("nvidia-smi -q -d TEMPERATURE,PERFORMANCE",))
    return warning(f"the clock of GPU {indices} is throttled by {why}", fix, **facts)


def _broken(nvidia: Nvidia, *, in_container: bool) -> Verdict:
    message, fix = _KNOWN.get(nvidia.error or "", (f"the driver does not answer: {nvidia.message}", _INSTALL))
    if nvidia.error == _LIBRARY_MISSING and in_container:
        return warning(
            "the machine has an NVIDIA GPU, but this container has no access to it", _CONTAINER, cards=nvidia.on_the_bus
        )
    if nvidia.error in ("hang", "missing"):
        message = nvidia.message
    return problem(message, fix, error=nvidia.error, said=nvidia.message, cards_on_the_bus=nvidia.on_the_bus)


CHECK = Check(name="gpu-driver", asks="NVIDIA driver and GPUs", ask=ask, seconds=30.0)

"""Does this torch fit the driver and the card: CUDA build, driver's CUDA, kernels for the card's capability?"""

from __future__ import annotations

import os
import re
from typing import Any

from holdfast.environment.check import Check, Fix, Verdict, note, ok, problem
from holdfast.environment.checks.gpu_visible import visible
from holdfast.environment.machine import Machine
from holdfast.environment.nvidia import Nvidia
from holdfast.environment.torch_facts import TorchFacts

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([a-z]?)")


def ask(machine: Machine) -> Verdict:
    """The build against driver and card; what ran on the card decides, versions only explain."""
    torch, nvidia = machine.torch, machine.nvidia
    facts = _facts(torch, nvidia)
    if torch.error is not None:
        return _broken(torch, facts)
    if not nvidia.cards and not torch.devices:
        return _without_cards(torch, nvidia, facts)
    if torch.cuda is None and torch.hip is None:
        message = f"torch {torch.version} is a CPU build on a machine with a GPU: training would be 50 to 100 times slower"
        return problem(message, install_fix(nvidia), **facts)
    if torch.cuda and nvidia.cuda and not torch.available and nvidia.cuda[0] < torch.cuda[0]:
        return _driver_too_old(torch, nvidia, facts)
    unfit = [card for card in nvidia.cards if card.capability and not runs_on(torch.architectures, card.capability)]
    failed = {number: error for number, error in torch.kernels.items() if error}
    if torch.architectures and unfit and (failed or not torch.kernels):
        card = unfit[0]
        message = f"torch {torch.version} has no kernels for {card.name} ({card.sm}); it has {' '.join(torch.architectures)}"
        return problem(message, install_fix(nvidia, f"a build with kernels for {card.sm}, newer than {torch.version}"), **facts)
    if failed:
        number, error = next(iter(failed.items()))
        fix = Fix("`holdfast explain` knows most of these texts", (f'holdfast explain "{error[:120]}"',))
        return problem(f"a first kernel on cuda:{number} failed: {error}", fix, **facts)
    return _available(torch, nvidia, facts)


def _available(torch: TorchFacts, nvidia: Nvidia, facts: dict[str, Any]) -> Verdict:
    if not torch.available:
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        if named is not None and not visible(named, nvidia.cards)[0]:
            return note(f"torch {torch.version} ({torch.build}) sees no GPU: see gpu-visible", **facts)
        fix = Fix("see what the driver reports", ("nvidia-smi",))
        return problem(f"torch {torch.version} ({torch.build}) finds no GPU: {torch.why_not or 'no reason given'}", fix, **facts)
    if torch.cuda and nvidia.cuda and nvidia.cuda < torch.cuda:
        message = f"torch {torch.version} ({torch.build}) on a driver for CUDA {_dotted(nvidia.cuda)}, older but of one series"
        return note(f"{message}: code compiled at run time for newer GPUs may fail", **facts)
    return ok(
        f"torch {torch.version} ({torch.build}); a first kernel ran on {len(torch.kernels)} of {len(torch.devices)}", **facts
    )


def _without_cards(torch: TorchFacts, nvidia: Nvidia, facts: dict[str, Any]) -> Verdict:
    if nvidia.present:
        return note(f"torch {torch.version} ({torch.build}); the GPU has no working driver: see gpu-driver", **facts)
    where = "Apple's GPU (mps)" if torch.mps else "the CPU"
    return ok(f"torch {torch.version} ({torch.build}); it computes on {where}", **facts)


def _broken(torch: TorchFacts, facts: dict[str, Any]) -> Verdict:
    if torch.version:
        fix = Fix("the reason for a hung or crashed driver is in the kernel log", ("sudo dmesg | grep -i -e nvrm -e xid",))
        return problem(f"torch {torch.version} does not get past '{torch.stage}': {torch.error}", fix, **facts)
    fix = Fix("install it again", ("pip install --force-reinstall torch",))
    return problem(f"torch cannot be imported: {torch.error}", fix, **facts)


def _driver_too_old(torch: TorchFacts, nvidia: Nvidia, facts: dict[str, Any]) -> Verdict:
    assert torch.cuda and nvidia.cuda
    message = (
        f"driver {nvidia.driver} serves CUDA up to {_dotted(nvidia.cuda)}, torch {torch.version} needs CUDA {_dotted(torch.cuda)}"
    )
    driver = Fix("install a newer driver", ("sudo ubuntu-drivers install", "sudo reboot"))
    return problem(f"the driver is too old: {message}", driver, install_fix(nvidia), **facts)


def install_fix(nvidia: Nvidia, package: str | None = None) -> Fix:
    """How to get a build that fits this driver."""
    cuda = f"CUDA {_dotted(nvidia.cuda)} or older" if nvidia.cuda else "CUDA"
    which = package or f"a build for {cuda}"
    advice = f"install {which}, with torchvision and torchaudio if they are used; pytorch.org/get-started has the URL for {cuda}"
    return Fix(advice, ("pip install --force-reinstall torch --index-url URL",))


def runs_on(architectures: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether a build has kernels for a card: of the same series and not newer, or in the form that the driver compiles."""
    for text in architectures:
        match = _ARCHITECTURE.fullmatch(text)
        if not match:
            continue
        built = int(match[2]), int(match[3])
        if match[1] == "compute" and not match[4] and built <= capability:
            return True
        if built == capability or (not match[4] and built[0] == capability[0] and built[1] <= capability[1]):
            return True
    return False


def _facts(torch: TorchFacts, nvidia: Nvidia) -> dict[str, Any]:
    facts = {
        "torch": torch.version, "built for": torch.build, "kernels": " ".join(torch.architectures),
        "driver": nvidia.driver, "driver serves CUDA up to": _dotted(nvidia.cuda) if nvidia.cuda else None,
        "cards": [f"{card.name} {card.sm}" for card in nvidia.cards],
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }  # fmt: skip
    return {name: value for name, value in facts.items() if value}


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


CHECK = Check(name="torch-build", asks="torch, CUDA and GPU match", ask=ask, seconds=120.0, heavy=True)

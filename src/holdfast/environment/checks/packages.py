"""Do torch and the packages around it fit each other? By what their metadata asks for, and what is known beyond it."""

from __future__ import annotations

import platform
import re
from dataclasses import replace
from typing import Any

from holdfast.environment.check import Check, Fix, Verdict, ok, problem, skipped, together, warning
from holdfast.environment.machine import Machine
from holdfast.environment.packages import TRAINING, Package, installed, of_training, plain

_BESIDE_TORCH = {"torchvision": (0, 15), "torchaudio": (2, 0)}  # the release that came with torch 2.0; one step for each since
_KNOWN = 8  # the last torch 2 that the table above was seen to hold for
_EXACT = re.compile(r"torch\s*\(?==\s*([\d.]+)")
_NAMED, _NUM_SHOWN = 2, 3
_EXTRAS = ("", "torch")  # transformers asks for torch in an extra, and works without torch when it is too old


def ask(_: Machine) -> Verdict:
    """What is installed for this Python."""
    return judge(installed())


def judge(packages: dict[str, Package]) -> Verdict:
    """Every pair that does not fit, the worst first."""
    if "torch" not in packages:
        return skipped("torch is not installed as a package here")
    wrong = [*_twice(packages), *_beside_torch(packages), *_numpy(packages), *_lightning(packages), *_asked_for(packages)]
    facts = of_training(packages)
    if wrong:
        all_of_it = together([*wrong, ok("", **facts)])
        return replace(all_of_it, message=_shortened(all_of_it.message))
    versions = ", ".join(f"{name} {version}" for name, version in list(facts.items())[:_NAMED])
    more = f" and {len(facts) - _NAMED} more" if len(facts) > _NAMED else ""
    return ok(f"{versions}{more} are compatible", **facts)


def _shortened(message: str) -> str:
    first = message.split("; ")
    return "; ".join(first[:_NUM_SHOWN]) + (f"; and {len(first) - _NUM_SHOWN} more (--json)" if len(first) > _NUM_SHOWN else "")


def _twice(packages: dict[str, Package]) -> list[Verdict]:
    return [
        warning(
            f"{name} is installed twice, as {package.version} and as {', '.join(package.also)}",
            Fix("remove both, then install one", (f"pip uninstall -y {name}", f"pip uninstall -y {name}", f"pip install {name}")),
        )
        for name in TRAINING
        if (package := packages.get(name)) is not None and package.also
    ]


def _beside_torch(packages: dict[str, Package]) -> list[Verdict]:
    """torchvision and torchaudio are built for one release of torch, and for one kind of it."""
    verdicts, torch = [], packages["torch"]
    for name in _BESIDE_TORCH:
        package = packages.get(name)
        if package is None:
            continue
        if not _made_for(package, torch):
            message = f"{name} {package.version} is not made for torch {torch.version}"
            verdicts.append(problem(message, Fix("install the version for this torch", (_matching(name, torch),))))
        elif package.build and torch.build and package.build != torch.build:
            message = f"{name} is built for {package.build}, torch for {torch.build}: 'operator {name}::… does not exist'"
            verdicts.append(
                problem(message, Fix("install both from the same place", (f"pip install --force-reinstall torch {name}",)))
            )
    return verdicts


def _made_for(package: Package, torch: Package) -> bool:
    """By the exact release that its metadata asks for; where it names none, by the table."""
    pinned = [match[1] for text in package.requires if (match := _EXACT.match(text))]
    if pinned:
        return Package("torch", pinned[0]).release == torch.release[: len(Package("torch", pinned[0]).release)]
    major, first = _BESIDE_TORCH[package.name]
    return torch.release[0] != 2 or torch.release[1] > _KNOWN or package.release[:2] == (major, first + torch.release[1])


def _matching(name: str, torch: Package) -> str:
    major, first = _BESIDE_TORCH[name]
    in_table = torch.release[0] == 2 and torch.release[1] <= _KNOWN
    if in_table:
        return f"pip install '{name}=={major}.{first + torch.release[1]}.*'"
    return f"pip install --upgrade {name} torch=={torch.version.partition('+')[0]}"


def _numpy(packages: dict[str, Package]) -> list[Verdict]:
    numpy, torch = packages.get("numpy"), packages["torch"]
    if numpy is None:
        return [warning("numpy is missing: tensor.numpy() and most loaders need it", Fix("install it", ("pip install numpy",)))]
    if numpy.release[:1] >= (2,) and torch.release[:2] < (2, 3):
        message = f"torch {torch.version} was built for numpy 1 and numpy is {numpy.version}: 'Failed to initialize NumPy'"
        return [problem(message, Fix("take numpy 1", ("pip install 'numpy<2'",)))]
    return []


def _lightning(packages: dict[str, Package]) -> list[Verdict]:
    new, old = packages.get("lightning"), packages.get("pytorch-lightning")
    if new and old and new.release[:2] != old.release[:2]:
        message = f"lightning {new.version} and pytorch-lightning {old.version} differ: one rejects the other's modules"
        return [warning(message, Fix("install one version of both", ("pip install --upgrade lightning pytorch-lightning",)))]
    return []


def _asked_for(packages: dict[str, Package]) -> list[Verdict]:
    """What the packages of a training ask of each other in their metadata."""
    from packaging.requirements import InvalidRequirement, Requirement

    verdicts = []
    for name in TRAINING:
        for text in packages[name].requires if name in packages else ():
            try:
                verdicts += _unmet(name, Requirement(text), packages)
            except InvalidRequirement:
                continue
    return verdicts


def _unmet(name: str, requirement: Any, packages: dict[str, Package]) -> list[Verdict]:
    other = plain(requirement.name)
    package = packages.get(other)
    if requirement.marker is not None and not any(requirement.marker.evaluate({"extra": extra}) for extra in _EXTRAS):
        return []
    if package is None:
        return [] if "extra" in str(requirement.marker or "") else [_missing(name, packages[name], requirement)]
    if requirement.specifier.contains(package.version.partition("+")[0], prereleases=True) or requirement.specifier.contains(
        package.version, prereleases=True
    ):
        return []
    if other in _BESIDE_TORCH or (name in _BESIDE_TORCH and other == "torch"):
        return []  # told already, with the version that fits
    message = (
        f"{name} {packages[name].version} needs {requirement.name} {requirement.specifier}, but {package.version} is installed"
    )
    return [
        (problem if other == "torch" else warning)(
            message,
            Fix("install compatible versions", (f"pip install --upgrade {name} '{requirement.name}{requirement.specifier}'",)),
        )
    ]


def _missing(name: str, package: Package, requirement: Any) -> Verdict:
    fix = Fix("install it", (f"pip install '{requirement.name}{requirement.specifier}'",))
    return warning(
        f"{name} {package.version} needs {requirement.name}, which is missing (Python {platform.python_version()})", fix
    )


CHECK = Check(name="packages", asks="compatible package versions", ask=ask)

"""Names of weights told by the module: `blocks.12 … blocks.23 (192 weights)` in place of 192 names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_NUMBERED = re.compile(r"^(.*\.)?(\d+)$")


@dataclass(frozen=True, slots=True)
class Group:
    """A module, a stretch of numbered ones, or a single weight, with its weights."""

    modules: tuple[str, ...]  # their names; of a single weight its own
    names: tuple[str, ...]
    is_module: bool

    @property
    def label(self) -> str:
        """Its name, or the first and the last."""
        return self.modules[0] if len(self.modules) == 1 else f"{self.modules[0]} … {self.modules[-1]}"

    def __str__(self) -> str:
        return f"{self.label} ({len(self.names):,} weights)" if len(self.names) > 1 else self.names[0]


def grouped(names: Iterable[str], among: Collection[str]) -> list[Group]:
    """The largest modules of which every weight is among the names; weights of other modules one by one."""
    chosen = list(names)
    if not chosen:
        return []
    left = set(chosen)
    mixed = {module for name in among if name not in left for module in modules_of(name)}
    found: dict[str, list[str]] = {}
    for name in chosen:
        whole = next((module for module in modules_of(name)[1:] if module not in mixed), name)
        found.setdefault(whole, []).append(name)
    return _folded([Group((label,), tuple(inside), label not in left) for label, inside in found.items()])


def modules_of(name: str) -> list[str]:
    """The modules that a weight lies in, the model itself ("") first."""
    parts = name.split(".")[:-1]
    return ["", *(".".join(parts[: length + 1]) for length in range(len(parts)))]


def _folded(groups: list[Group]) -> list[Group]:
    """Numbered neighbours as one: `blocks.12 … blocks.23`."""
    found: list[Group] = []
    for group in groups:
        if found and _follows(found[-1], group):
            found[-1] = Group((*found[-1].modules, *group.modules), (*found[-1].names, *group.names), True)
        else:
            found.append(group)
    return found


def _follows(before: Group, after: Group) -> bool:
    one, other = (_NUMBERED.match(group.modules[-1]) for group in (before, after))
    return bool(
        before.is_module and after.is_module and one and other and one[1] == other[1] and int(other[2]) == int(one[2]) + 1
    )

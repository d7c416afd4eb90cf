"""Which faults are injected when: decided by the command line, read by the training process from its environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "HOLDFAST_DRILL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One fault at one step. `source` is the file of a user-defined fault."""

    code: str
    step: int
    strength: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All faults of one run, and the folder for its notes; without faults it is a control."""

    faults: tuple[Planned, ...]
    folder: Path
    seed: int = 0

    def as_environment(self) -> dict[str, str]:
        """The plan as environment variables for the training process."""
        faults = [asdict(fault) for fault in self.faults]
        return {VARIABLE: json.dumps({"faults": faults, "folder": str(self.folder), "seed": self.seed})}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Plan | None:
        """The plan, if there is one."""
        if not environment.get(VARIABLE):
            return None
        read = json.loads(environment[VARIABLE])
        faults = tuple(Planned(**fault) for fault in read["faults"])
        return cls(faults=faults, folder=Path(read["folder"]), seed=read["seed"])

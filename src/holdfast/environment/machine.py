"""This machine as the checks see it: facts that several of them need are found out once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from holdfast.environment.nvidia import Nvidia, read_nvidia
from holdfast.environment.platform import Platform, read_platform
from holdfast.environment.torch_facts import TorchFacts, read_torch

Fact = TypeVar("Fact")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """What the user means to run, as far as it was said. `folder` is where runs are written."""

    folder: Path = Path()
    workers: int | None = None
    batch: int | None = None  # bytes


class Machine:
    """Asks once for each fact that is not given; a second check that needs it waits for the first."""

    def __init__(self, plans: Plans | None = None, **facts: Platform | Nvidia | TorchFacts) -> None:
        self.plans = plans or Plans()
        self._facts: dict[str, Any] = dict(facts)
        self._locks = {name: threading.Lock() for name in ("platform", "nvidia", "torch")}

    @property
    def platform(self) -> Platform:
        """What machine it is."""
        return self._once("platform", read_platform)

    @property
    def nvidia(self) -> Nvidia:
        """What NVML reports."""
        return self._once("nvidia", read_nvidia)

    @property
    def torch(self) -> TorchFacts:
        """What torch reports; asked after NVML, which would take it for somebody else on the card."""
        if "torch" not in self._facts:
            _ = self.nvidia
        return self._once("torch", read_torch)

    @property
    def workers(self) -> int:
        """Loader workers to reckon with: those that were said, or as many as people take on such a machine."""
        return self.plans.workers if self.plans.workers is not None else max(1, min(8, int(self.platform.usable)))

    def _once(self, name: str, ask: Callable[[], Fact]) -> Fact:
        with self._locks[name]:
            if name not in self._facts:
                self._facts[name] = ask()
        return cast(Fact, self._facts[name])

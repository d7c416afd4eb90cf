"""What Holdfast may do in a run, as the part inside needs to know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

POLICIES = ("observe", "guard", "heal")
_STRENGTH = {name: strength for strength, name in enumerate(POLICIES)}


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy for everything, and others for single finding codes. A file of own policies may do what `heal` may."""

    name: str = "observe"
    rules: Mapping[str, str] = field(default_factory=dict)

    @property
    def acts(self) -> bool:
        """Whether anything may be changed at all."""
        return self._strength(self.name) > 0 or any(self._strength(rule) for rule in self.rules.values())

    @property
    def heals(self) -> bool:
        """Whether a run may be repaired, not only guarded."""
        return self._strength(self.name) > 1 or any(self._strength(rule) > 1 for rule in self.rules.values())

    def guards(self, code: str) -> bool:
        """Whether an update may be left out because of this finding."""
        return self._strength(self.rules.get(code, self.name)) > 0

    def heals_from(self, code: str) -> bool:
        """Whether a repair may be made because of this finding."""
        return self._strength(self.rules.get(code, self.name)) > 1

    def _strength(self, name: str) -> int:
        return _STRENGTH.get(name, len(POLICIES) - 1)


OBSERVE = Policy()


def read_rules(text: str) -> dict[str, str]:
    """`loss-spike=observe,loss-divergence=heal` as a table; what cannot be read is left out."""
    pairs = (part.split("=", 1) for part in text.split(",") if "=" in part)
    return {code.strip(): name.strip() for code, name in pairs if name.strip() in POLICIES}

"""What Holdfast may do in a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

POLICIES = ("observe", "guard", "heal")
_STRENGTH = {name: strength for strength, name in enumerate(POLICIES)}


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy for the run, and rules for single finding codes. A file with custom policies may do what `heal` may."""

    name: str = "observe"
    rules: Mapping[str, str] = field(default_factory=dict)

    @property
    def acts(self) -> bool:
        """Whether Holdfast may change anything."""
        return self._strength(self.name) > 0 or any(self._strength(rule) for rule in self.rules.values())

    @property
    def heals(self) -> bool:
        """Whether Holdfast may repair the run, not only guard it."""
        return self._strength(self.name) > 1 or any(self._strength(rule) > 1 for rule in self.rules.values())

    def guards(self, code: str) -> bool:
        """Whether an update may be skipped because of this finding."""
        return self._strength(self.rules.get(code, self.name)) > 0

    def heals_from(self, code: str) -> bool:
        """Whether a repair may be made because of this finding."""
        return self._strength(self.rules.get(code, self.name)) > 1

    def _strength(self, name: str) -> int:
        return _STRENGTH.get(name, len(POLICIES) - 1)


OBSERVE = Policy()


def read_rules(text: str) -> dict[str, str]:
    """Parse `loss-spike=observe,loss-divergence=heal`; malformed parts are ignored."""
    pairs = (part.split("=", 1) for part in text.split(",") if "=" in part)
    return {code.strip(): name.strip() for code, name in pairs if name.strip() in POLICIES}

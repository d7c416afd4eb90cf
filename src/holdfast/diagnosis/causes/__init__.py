"""What findings may come from, and what helps: knowledge as data, one file for each kind of trouble."""

from __future__ import annotations

from holdfast.diagnosis.causes.cause import Cause, Fix
from holdfast.diagnosis.causes.learning import OF_LEARNING
from holdfast.diagnosis.causes.memory import OF_MEMORY
from holdfast.diagnosis.causes.numbers import OF_NUMBERS
from holdfast.diagnosis.causes.resuming import OF_RESUMING

CAUSES = (*OF_NUMBERS, *OF_MEMORY, *OF_LEARNING, *OF_RESUMING)
BY_CODE = {cause.code: cause for cause in reversed(CAUSES)}

__all__ = ["BY_CODE", "CAUSES", "Cause", "Fix"]

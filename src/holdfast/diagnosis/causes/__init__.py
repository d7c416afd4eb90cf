"""What findings may come from, and what helps: knowledge as data, one file for each kind of trouble."""

from __future__ import annotations

from holdfast.diagnosis.causes.cause import Cause, Fix
from holdfast.diagnosis.causes.data import OF_DATA
from holdfast.diagnosis.causes.errors import OF_ERRORS
from holdfast.diagnosis.causes.learning import OF_LEARNING
from holdfast.diagnosis.causes.memory import OF_MEMORY
from holdfast.diagnosis.causes.numbers import OF_NUMBERS
from holdfast.diagnosis.causes.resuming import OF_RESUMING
from holdfast.diagnosis.causes.speed import OF_SPEED
from holdfast.diagnosis.causes.storage import OF_STORAGE

CAUSES = (*OF_NUMBERS, *OF_MEMORY, *OF_LEARNING, *OF_DATA, *OF_SPEED, *OF_RESUMING, *OF_STORAGE, *OF_ERRORS)
BY_CODE = {cause.code: cause for cause in reversed(CAUSES)}

__all__ = ["BY_CODE", "CAUSES", "Cause", "Fix"]

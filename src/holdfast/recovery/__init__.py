"""Policies: what to do about a diagnosis. Each is a small frozen dataclass with a pure `decide(diagnosis, past)`."""

from holdfast.recovery.ending import KeepBest, SaveCheckpoint, StopEarly
from holdfast.recovery.gentle import ClipSpikes, LowerLearningRate, ShrinkMicroBatch, SkipBatch
from holdfast.recovery.past import ActionLog
from holdfast.recovery.policy import Policy
from holdfast.recovery.roll_back import RollBack
from holdfast.signals.actions import Action, Refused, RunControl

__all__ = [
    "Action",
    "ActionLog",
    "ClipSpikes",
    "KeepBest",
    "LowerLearningRate",
    "Policy",
    "Refused",
    "RollBack",
    "RunControl",
    "SaveCheckpoint",
    "ShrinkMicroBatch",
    "SkipBatch",
    "StopEarly",
]

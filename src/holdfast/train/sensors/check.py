"""What can be refused before a training on sensor data starts. torch is not imported here."""

from __future__ import annotations

from holdfast.train.sensors.opening import open_events
from holdfast.train.sensors.pretrained import same_preprocessing
from holdfast.train.settings import SensorsSettings


def check(settings: SensorsSettings) -> None:
    """Raise UsageError where the array, the files or the weights to start from do not fit together."""
    open_events(settings, same_preprocessing(settings))

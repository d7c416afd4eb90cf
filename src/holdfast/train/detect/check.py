"""What can be refused before a detection starts. torch is not imported here."""

from __future__ import annotations

from holdfast.train.detect import sizes, ultralytics
from holdfast.train.detect.boxes import check_splits
from holdfast.train.extras import check_installed
from holdfast.train.settings import DetectSettings


def check(settings: DetectSettings) -> None:
    """Raise UsageError where the architecture does not exist, a package is not installed, or the data has no boxes."""
    if ultralytics.trains(settings):
        ultralytics.check(settings)
    else:
        sizes.find(settings.architecture)
        check_installed(("transformers", "scipy", "faster_coco_eval"), task="detect")
    check_splits(settings.data)

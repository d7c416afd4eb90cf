"""What can be refused before a segmentation starts. torch is not imported here."""

from __future__ import annotations

from holdfast.train.extras import check_installed
from holdfast.train.segment.masks import open_masks, split_up
from holdfast.train.settings import SegmentSettings


def check(settings: SegmentSettings) -> None:
    """Raise UsageError where a package is not installed, or the data has no masks."""
    check_installed(("timm", "scipy"), task="segment")
    split_up(open_masks(settings.data))

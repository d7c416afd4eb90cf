"""All kinds of fault that are found sample by sample, by their code."""

from __future__ import annotations

from holdfast.data.checks import boxes, image_extension, image_size, image_whole, labels, masks, parts, rotation
from holdfast.data.problem import Kind

BY_CODE: dict[str, Kind] = {
    kind.code: kind
    for module in (image_whole, image_extension, image_size, rotation, labels, boxes, masks, parts)
    for kind in module.KINDS
}

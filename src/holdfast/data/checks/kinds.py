"""All kinds of fault that are found sample by sample, by their code."""

from __future__ import annotations

from holdfast.data.checks import boxes, images, labels, masks
from holdfast.data.problem import Kind

# Tables, arrays and trees that cannot be read, or must not be.

TABLE = Kind(
    "table-unreadable", "critical", "tables that cannot be read to their end: {count}", "write them again from the source"
)
ARRAY = Kind(
    "array-unreadable", "critical", "arrays that cannot be read to their end: {count}", "save them again from the source"
)
TREE = Kind(
    "tree-unreadable", "critical", "ROOT files that cannot be read to their end: {count}", "copy them again from the source"
)
PICKLED = Kind(
    "array-pickled", "critical", "arrays of Python objects, not opened: {count}",
    "save plain numbers (one dtype, no ragged lists): a pickle runs code when it is read",
)  # fmt: skip
SAMPLE = Kind(
    "sample-unreadable",
    "critical",
    "samples that raised an error when they were read: {count}",
    "run the data set on this index to see it",
)

BY_CODE: dict[str, Kind] = {
    kind.code: kind for kind in (*images.KINDS, *labels.KINDS, *boxes.KINDS, *masks.KINDS, TABLE, ARRAY, TREE, PICKLED, SAMPLE)
}

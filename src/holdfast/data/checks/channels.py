"""Images with another number of channels than the rest, and sets whose images all have an alpha channel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from holdfast.data.problem import Kind, Problem, problem

DIFFER = Kind(
    "image-channels", "warning", "images with another number of channels than the others: {count}",
    "convert all of them to one mode (image.convert('RGB')), or a batch of them cannot be stacked",
)  # fmt: skip
ALPHA = Kind(
    "image-alpha", "info", "all images have an alpha channel (RGBA)",
    "nothing, if the loader converts them (image.convert('RGB')); read as they are they have four channels",
)  # fmt: skip
KINDS = (DIFFER, ALPHA)
_SAID = {1: "1 channel (grey)", 2: "2 channels (grey, alpha)", 3: "3 channels (RGB)", 4: "4 channels (RGBA)"}


def channel_problems(files: Sequence[str], channels: Sequence[int]) -> Iterator[Problem]:
    """Compare the channels of all images; 0 stands for one that could not be read."""
    counts = Counter(count for count in channels if count)
    if not counts:
        return
    usual, many = counts.most_common(1)[0]
    odd = [(file, count) for file, count in zip(files, channels, strict=True) if count not in (0, usual)]
    if odd:
        example = f"{odd[0][0]}: {_SAID.get(odd[0][1], odd[0][1])}; {many:,} others have {_SAID.get(usual, usual)}"
        cases = [f"{file}: {_SAID.get(count, count)}" for file, count in odd]
        yield problem(DIFFER, count=len(odd), files=[file for file, _ in odd], example=example, cases=cases)
    elif usual == 4:
        yield problem(ALPHA, count=many, files=[], example=f"{files[0]}: RGBA")
